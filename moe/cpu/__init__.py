"""Code written for runs without CUDA: Megatron on a CPU host, dispatch over gloo, operators that save memory."""
