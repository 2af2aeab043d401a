"""GPU kernels in Triton. Each stands beside a plain twin in torch, which tests compare it with, and which runs where
there is no Triton or no GPU."""
