"""Counts the words of a text."""

import argparse
import csv
import re
from collections import Counter
from pathlib import Path

IGNORED = Path(__file__).parent.parent / "reference" / "ignored.txt"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("--most", type=int, default=3)
    options = parser.parse_args()

    ignored = set(IGNORED.read_text().split())
    words = re.findall(r"\w+", options.text.read_text().lower())
    counts = Counter(word for word in words if word not in ignored)
    tools = {tool["name"] for tool in list_tools()}
    with options.table.open("w", newline="") as file:
        table = csv.writer(file)
        for word, count in counts.most_common(options.most):
            row = [word, count]
            if "translate" in tools:
                row.append(call_tool_sync("translate", word=word))
            table.writerow(row)
    print(f"{len(words)} words, {len(counts)} different ones that count")


if __name__ == "__main__":
    main()
