"""One file per operator: its public function, its formulas in MindSpore ops, its cell."""
