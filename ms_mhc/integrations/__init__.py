"""These operators inside other libraries' models."""
