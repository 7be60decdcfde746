"""Files of any kind: strict reading, atomic writing, sizes for people."""
