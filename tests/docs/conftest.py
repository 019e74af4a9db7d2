"""Put this folder on the import path, for modules that its tests share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
