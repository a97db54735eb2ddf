"""Gradients of many models: vectorised with torch.func, or looped with the fast convolution kernels."""
