import type { JobFile } from '../contract/job.js'

/**
 * The small Python project that the demo's agents work on: a ledger that sums amounts by account in one currency.
 * Paths are relative to the repository. Everything in it is ASCII, so that searches sort the same everywhere.
 */
const FILES: Record<string, string> = {
  'README.md': `# tally

Sums the amounts of a ledger by account, in euros.

A line of a ledger is: account amount currency. Empty lines and lines that start with # are skipped.

    python3 dist/tally.pyz sample.txt

## Changes
`,
  '.gitignore': `__pycache__/
dist/
`,
  'sample.txt': `# account amount currency
cash 120 EUR
bank 2500 USD
cash -20 EUR
shop 75 GBP

bank 40 EUR
shop -5 GBP
`,
  'src/tally/__init__.py': `"""Sums the amounts of a ledger by account."""
`,
  'src/tally/entry.py': `"""One line of a ledger."""

from collections import namedtuple

Entry = namedtuple("Entry", "account amount currency")


class BadLine(ValueError):
    """A line that is not: account amount currency."""


def parse(text):
    """The entries of a ledger's text, in order."""
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 3:
            raise BadLine("line %d has %d words, not 3" % (number, len(words)))
        account, amount, currency = words
        entries.append(Entry(account, int(amount), currency.upper()))
    return entries
`,
  'src/tally/rates.py': `"""What one unit of a currency is worth, in thousandths of a euro."""

RATES = {
    "EUR": 1000,
    "GBP": 1200,
    "USD": 900,
    # new currencies go above this line
}


class UnknownCurrency(KeyError):
    """A currency without a rate."""


def in_euros(amount, currency):
    """The amount in whole euros, rounded down."""
    if currency not in RATES:
        raise UnknownCurrency(currency)
    return amount * RATES[currency] // 1000
`,
  'src/tally/totals.py': `"""Sums over entries."""

from tally.rates import in_euros


def by_account(entries):
    """Account -> sum in euros."""
    totals = {}
    for entry in entries:
        value = in_euros(entry.amount, entry.currency)
        totals[entry.account] = totals.get(entry.account, 0) + value
    return totals


def largest(totals, count):
    """The largest sums first; equal sums in order of the account's name."""
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:count]
`,
  'src/tally/report.py': `"""Text for people."""

from tally.totals import by_account, largest


def report(entries):
    """One line for each account, largest sum first, then the sum of all."""
    totals = by_account(entries)
    lines = ["%-8s %8d" % item for item in largest(totals, len(totals))]
    lines.append("%-8s %8d" % ("total", sum(totals.values())))
    return "\\n".join(lines)
`,
  'src/tally/main.py': `"""The command: tally FILE"""

import sys

from tally.entry import parse
from tally.rates import RATES
from tally.report import report


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        entries = parse(file.read())
    print(report(entries))
    print("%d currencies known" % len(RATES))
`,
  'tests/__init__.py': `import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
`,
  'tests/test_entry.py': `import unittest

from tally.entry import BadLine, Entry, parse


class EntryTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(parse("cash 5 eur"), [Entry("cash", 5, "EUR")])

    def test_skips_comments_and_empty_lines(self):
        self.assertEqual(parse("# note\\n\\n"), [])

    def test_bad_line_is_named(self):
        with self.assertRaisesRegex(BadLine, "line 2 has 1 words"):
            parse("cash 5 EUR\\ncash")
`,
  'tests/test_rates.py': `import unittest

from tally.rates import UnknownCurrency, in_euros


class RatesTest(unittest.TestCase):
    def test_euro(self):
        self.assertEqual(in_euros(7, "EUR"), 7)

    def test_rounds_down(self):
        self.assertEqual(in_euros(3, "USD"), 2)

    def test_unknown_currency(self):
        with self.assertRaises(UnknownCurrency):
            in_euros(1, "XXX")

    # tests of new currencies go above this line
`,
  'tests/test_totals.py': `import unittest

from tally.entry import parse
from tally.report import report
from tally.totals import by_account, largest

LEDGER = parse("cash 10 EUR\\nbank 20 USD\\ncash 5 EUR")


class TotalsTest(unittest.TestCase):
    def test_by_account(self):
        self.assertEqual(by_account(LEDGER), {"cash": 15, "bank": 18})

    def test_largest_first(self):
        self.assertEqual(largest({"a": 1, "b": 3, "c": 2}, 2), [("b", 3), ("c", 2)])

    def test_equal_sums_by_name(self):
        self.assertEqual(largest({"b": 1, "a": 1}, 2), [("a", 1), ("b", 1)])

    def test_report_ends_with_the_total(self):
        self.assertEqual(report(LEDGER).splitlines()[-1].split(), ["total", "33"])
`,
}

/** Tests of the project as it starts. */
export const BASE_TESTS = 10
/** Rates of the project as it starts. */
export const BASE_RATES = 3

/** What `tally sample.txt` prints, but for its last line, while no slip is in the code. */
export const SAMPLE_REPORT = [
  'bank         2290',
  'cash          100',
  'shop           84',
  'total        2474',
]

/** A replacement of a text that stands exactly once in a file. */
export interface Replacement {
  path: string
  find: string
  replace: string
}

/** A mistake that an agent makes and then finds by its tests. */
export interface Slip {
  change: Replacement
  /** names of the tests that fail while it is in the code */
  failing: string[]
  /** what `tally sample.txt` prints then, but for its last line */
  report: string[]
}

export const SLIPS: readonly Slip[] = [
  {
    change: {
      path: 'src/tally/totals.py',
      find: 'totals.get(entry.account, 0) + value',
      replace: 'totals.get(entry.account, 0) - value',
    },
    failing: ['test_by_account', 'test_report_ends_with_the_total'],
    report: ['shop          -84', 'cash         -100', 'bank        -2290', 'total       -2474'],
  },
  {
    change: {
      path: 'src/tally/totals.py',
      find: '(-item[1], item[0])',
      replace: '(item[1], item[0])',
    },
    failing: ['test_largest_first'],
    report: ['shop           84', 'cash          100', 'bank         2290', 'total        2474'],
  },
  {
    change: {
      path: 'src/tally/report.py',
      find: 'sum(totals.values())',
      replace: 'max(totals.values())',
    },
    failing: ['test_report_ends_with_the_total'],
    report: ['bank         2290', 'cash          100', 'shop           84', 'total        2290'],
  },
]

/** The project as it starts; paths relative to the repository. */
export function baseFiles(): Map<string, string> {
  return new Map(Object.entries(FILES))
}

/** Adds a currency: a rate, its test, and a line in the list of changes. */
export function addCurrency(name: string, thousandths: number): Replacement[] {
  const rateMark = '    # new currencies go above this line\n'
  const testMark = '    # tests of new currencies go above this line\n'
  const test = [
    `    def test_${name.toLowerCase()}(self):`,
    `        self.assertEqual(in_euros(1000, "${name}"), ${thousandths})`,
    '',
    '',
  ].join('\n')
  return [
    { path: 'src/tally/rates.py', find: rateMark, replace: `    "${name}": ${thousandths},\n${rateMark}` },
    { path: 'tests/test_rates.py', find: testMark, replace: test + testMark },
    { path: 'README.md', find: '## Changes\n', replace: `## Changes\n- ${name}\n` },
  ]
}

/** The inverse of a replacement. */
export function undo(change: Replacement): Replacement {
  return { path: change.path, find: change.replace, replace: change.find }
}

/**
 * Changes the files in place, as EDIT_SCRIPT does in the pod.
 * @throws Error when a text does not stand exactly once in its file: a fault of the demo
 */
export function apply(files: Map<string, string>, changes: readonly Replacement[]): void {
  for (const { path, find, replace } of changes) {
    const parts = (files.get(path) ?? '').split(find)
    if (parts.length !== 2) throw new Error(`${path} has ${parts.length - 1} times ${JSON.stringify(find)}`)
    files.set(path, parts.join(replace))
  }
}

/** Applies the Replacements that come as a JSON list on standard input, all of them or none. */
export const EDIT_SCRIPT = `import json
import sys

files = {}
for change in json.load(sys.stdin):
    path = change["path"]
    if path not in files:
        with open(path, encoding="utf-8") as file:
            files[path] = file.read()
    found = files[path].count(change["find"])
    if found != 1:
        sys.exit("%s has %d times %r, not once" % (path, found, change["find"]))
    files[path] = files[path].replace(change["find"], change["replace"])
for path, text in files.items():
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
print("edited %d files" % len(files))
`

/** The files as a job carries them, below `folder`. */
export function jobFiles(files: ReadonlyMap<string, string>, folder: string): JobFile[] {
  return [...files].map(([path, content]) => ({ path: `${folder}/${path}`, content }))
}
