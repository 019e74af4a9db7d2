"""Import path of the shared modules next to the tests of documents."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
