from gruppo.cli import main

raise SystemExit(main())
