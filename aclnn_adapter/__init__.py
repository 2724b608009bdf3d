"""From the contract of an aclnn operator to a kernel that MindSpore can call."""
