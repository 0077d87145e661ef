"""Well-known small functions that the code requests ask for by description.

One rule: `{a}` is the first argument, `{name}` the function itself, and every body is valid Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NUMBER: Final = ("n", "number", "value")
TEXT: Final = ("text", "s", "word", "line")
LIST: Final = ("items", "values", "numbers", "data")


@dataclass(frozen=True)
class Snippet:
    """One function: what it does, its name, the names its first argument may have, its body, a remark."""

    words: str
    name: str
    arguments: tuple[str, ...]
    body: tuple[str, ...]
    note: str = ""
    rest: str = ""  # the arguments after the first


SNIPPETS: Final = (
    Snippet("returns the factorial of `{a}`", "factorial", NUMBER,
            ("result = 1", "for i in range(2, {a} + 1):", "    result *= i", "return result"),
            "The loop multiplies all numbers up to the argument."),
    Snippet("returns the factorial of `{a}` with recursion", "factorial", NUMBER,
            ("if {a} < 2:", "    return 1", "return {a} * {name}({a} - 1)"),
            "The function calls itself with a smaller number."),
    Snippet("returns the Fibonacci number at place `{a}`", "fibonacci", NUMBER,
            ("a, b = 0, 1", "for _ in range({a}):", "    a, b = b, a + b", "return a"),
            "Each number is the sum of the two before it."),
    Snippet("checks if `{a}` is a prime number", "is_prime", NUMBER,
            ("if {a} < 2:", "    return False", "for i in range(2, {a}):", "    if {a} % i == 0:",
             "        return False", "return True"),
            "A prime number has no divisor except one and itself."),
    Snippet("returns the sum of the digits of `{a}`", "digit_sum", NUMBER,
            ("return sum(int(digit) for digit in str({a}))",), "The number becomes a string, and each digit is added."),
    Snippet("returns the greatest common divisor of `{a}` and `m`", "gcd", NUMBER,
            ("while m:", "    {a}, m = m, {a} % m", "return {a}"), "This is the algorithm of Euclid.", ", m"),
    Snippet("checks if `{a}` is even", "is_even", NUMBER, ("return {a} % 2 == 0",)),
    Snippet("raises `{a}` to the power `p`", "power", NUMBER,
            ("result = 1", "for _ in range(p):", "    result *= {a}", "return result"), "", ", p"),
    Snippet("limits `{a}` to the range from `low` to `high`", "clamp", NUMBER,
            ("return max(low, min({a}, high))",), "The inner call limits the top, the outer call limits the bottom.",
            ", low, high"),
    Snippet("checks if the year `{a}` is a leap year", "is_leap", ("year", "y"),
            ("if {a} % 400 == 0:", "    return True", "return {a} % 4 == 0 and {a} % 100 != 0")),
    Snippet("prints the numbers from 1 to `{a}`, with fizz and buzz", "fizzbuzz", NUMBER,
            ("for i in range(1, {a} + 1):", "    if i % 15 == 0:", "        print('fizzbuzz')", "    elif i % 3 == 0:",
             "        print('fizz')", "    elif i % 5 == 0:", "        print('buzz')", "    else:",
             "        print(i)")),
    Snippet("reverses the string `{a}`", "reverse", TEXT, ("return {a}[::-1]",),
            "A slice with step minus one goes backwards."),
    Snippet("checks if the string `{a}` is a palindrome", "is_palindrome", TEXT,
            ("{a} = {a}.lower()", "return {a} == {a}[::-1]"), "It compares the string with its reverse."),
    Snippet("counts the vowels in the string `{a}`", "count_vowels", TEXT,
            ("count = 0", "for letter in {a}.lower():", "    if letter in 'aeiou':", "        count += 1",
             "return count")),
    Snippet("returns the words of the string `{a}`", "split_words", TEXT, ("return {a}.split()",)),
    Snippet("counts the words in the string `{a}`", "count_words", TEXT, ("return len({a}.split())",)),
    Snippet("returns the longest word in the string `{a}`", "longest_word", TEXT,
            ("return max({a}.split(), key=len)",), "The key makes `max` compare lengths."),
    Snippet("removes all spaces from the string `{a}`", "remove_spaces", TEXT, ("return {a}.replace(' ', '')",)),
    Snippet("counts how often `letter` is in the string `{a}`", "count_letter", TEXT,
            ("count = 0", "for c in {a}:", "    if c == letter:", "        count += 1", "return count"),
            "", ", letter"),
    Snippet("returns a dictionary with the count of each letter in `{a}`", "letter_counts", TEXT,
            ("counts = {{}}", "for letter in {a}:", "    counts[letter] = counts.get(letter, 0) + 1",
             "return counts"),
            "`get` returns zero for a letter that is new."),
    Snippet("returns the largest item of the list `{a}`", "largest", LIST,
            ("best = {a}[0]", "for item in {a}:", "    if item > best:", "        best = item", "return best")),
    Snippet("returns the smallest item of the list `{a}`", "smallest", LIST,
            ("best = {a}[0]", "for item in {a}:", "    if item < best:", "        best = item", "return best")),
    Snippet("returns the average of the list `{a}`", "average", LIST,
            ("if not {a}:", "    return 0", "return sum({a}) / len({a})"), "An empty list has the average zero here."),
    Snippet("removes duplicates from the list `{a}`", "unique", LIST,
            ("seen = set()", "result = []", "for item in {a}:", "    if item not in seen:", "        seen.add(item)",
             "        result.append(item)", "return result"), "The set remembers what was seen, and the order stays."),
    Snippet("sorts the list `{a}` from large to small", "sort_down", LIST, ("return sorted({a}, reverse=True)",)),
    Snippet("returns the first `k` items of the list `{a}`", "first_items", LIST, ("return {a}[:k]",), "", ", k"),
    Snippet("joins the list `{a}` into one string with commas", "join_items", LIST,
            ("return ', '.join(str(item) for item in {a})",)),
    Snippet("returns the index of `target` in the list `{a}`, or -1", "find_index", LIST,
            ("for i, item in enumerate({a}):", "    if item == target:", "        return i", "return -1"),
            "It returns as soon as the target is found.", ", target"),
    Snippet("swaps keys and values of the dictionary `{a}`", "invert", ("table", "d", "mapping"),
            ("return {{value: key for key, value in {a}.items()}}",)),
    Snippet("returns the running sums of the list `{a}`", "running_sums", LIST,
            ("total = 0", "sums = []", "for item in {a}:", "    total += item", "    sums.append(total)",
             "return sums")),
)  # fmt: skip
