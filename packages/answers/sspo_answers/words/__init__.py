"""Words in answers: numbers in words and in Chinese, words of other languages, remarks after a value."""
