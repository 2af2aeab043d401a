"""`python -m gruppo` is the same as `gruppo`."""

from gruppo.cli import main

raise SystemExit(main())
