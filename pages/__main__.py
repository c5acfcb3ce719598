"""python -m pages: write numbers, tables and a picture into the pages; see pages/marks.py."""

import sys

from pages.marks import write

if __name__ == "__main__":
    is_check = "--check" in sys.argv[1:]
    differences = write(is_check=is_check)
    if is_check:
        sys.exit("\n\n".join(map(str, differences)) or 0)
    for difference in differences:
        print(f"{difference.page}: {difference.mark} was {difference.shown.strip()!r:.80}")
