"""Names for type checkers, without `typing`, which is slow to import: a sandbox starts in milliseconds."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as Any
else:
    Any = object
