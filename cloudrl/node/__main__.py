"""`python -m cloudrl.node`, and the entry of `cloudrl-node.pyz`."""

import sys

from cloudrl.node.main import main

if __name__ == "__main__":
    sys.exit(main())
