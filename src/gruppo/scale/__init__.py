"""Beyond one process: several GPUs that learn one step together (docs/scale.md)."""
