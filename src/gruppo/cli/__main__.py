"""`python -m gruppo.cli` is the same as `gruppo`: for `torchrun -m gruppo.cli train …`."""

from gruppo.cli import main

raise SystemExit(main())
