"""python -m initdiag"""

from __future__ import annotations

from initdiag.cli.entry import main

if __name__ == "__main__":
    main()
