"""The host CANN: stand-ins for the vendor's libraries. MindSpore's and PyTorch's Ascend backends run on it, on a CPU.

``python -m aclnn_adapter.host PROGRAM`` runs a program on it. Everything between the Python call and the aclnn entry
point is the framework's own code; the entry points, the device and its memory are this package's.
"""
