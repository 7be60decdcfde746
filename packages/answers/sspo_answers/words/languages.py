"""Reads what other languages than English and Chinese put around an answer: "La réponse est", "答えは...です"."""

import re
import unicodedata

# In every pattern, words of Latin letters have no accents: `_without_accents` has been applied.
_ARTICLE = r"(?:(?:la|el|le|les|l'|il|lo|a|o|die|das|der|het|de|det|az)\s*(?<=[\s']))?"
_KIND = (
    r"(?:bonn?e?|finale?|final[ao]|corret[ao]|corrett[ao]|correct[aeo]?|definitiv[ao]|endgultige|richtige|juiste|akhir|nihai|"
    r"окончательный|правильный|итоговый|最終的?な?|最終|최종)"
)
_ANSWER = (
    r"(?:respuesta|resposta|risposta|reponse|raspuns(?:ul)?|resultado|resultat|risultato|solucion|solucao|soluzione|"
    r"solution|antwort|ergebnis|losung|antwoord|svar(?:et)?|vastaus|valasz|odgovor|odpowiedz|odpoved|cevap|yanit|sonuc|"
    r"jawaban(?:nya)?|đap (?:an|so)|ответ|відповідь|результат|答え?|解答|回答|정?답|الجواب|الإجابة|उत्तर|ה?תשובה)"
)
_IS = (
    r"(?:(?:es|est|ist|lautet|betragt|[èé]|este|is|ar|er|on|jest|je|adalah|ialah|la|являет?ся|равен)"
    r"(?![^\W\d_])|это|は|が|[은는이가](?=\s*[-0-9\\(\[$A-Za-z])|है)"
)
# "la B", "die Option B"
_OPTION = (
    r"(?:la|el|le|l'|a|o|die|der|das)\s+(?:(?:opcion|option|opcao|opzione|letra|lettre|lettera|alternativa)\s+)?"
    r"(?=\(?[A-J]\)?\W*$)"
)
_SO = re.compile(
    r"^(?:por (?:lo )?tanto|portanto|logo|assim|donc|ainsi|par consequent|daher|somit|folglich|quindi|dunque|pertanto|"
    r"dus|vay|итак|следовательно|таким образом|значит|したがって|よって|ゆえに|따라서|그러므로)(?![^\W\d_])[,:]?\s*",
    re.IGNORECASE,
)
_LEAD = re.compile(
    rf"^{_ARTICLE}(?:{_KIND}\s*)?{_ANSWER}(?:\s+{_KIND})?\s*(?:{_IS}\s*:?|[:=])\s*(?:{_OPTION})?", re.IGNORECASE
)
_VERB_AT_END = re.compile(r"(?<=[0-9A-Za-z)}\]$])\s*(?:です|である|だ|となる|입니다|이다|है)$")
_COUNTED = re.compile(r"(?<=[0-9])\s*(?:개|명|가지|마리|권|원|살|대|장|병|(?:つ|個|人|通り|円|枚|匹|冊|本|回)(?!\w))$")
_LATIN_WORD = re.compile(
    r"[A-Za-z]*[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff][A-Za-z\u00c0-\u024f\u1e00-\u1eff]*"
)
_MARK = re.compile("[\u0300-\u036f]")

# Words of Latin scripts that change a number, before or after it: "nicht 7", "7 oder mehr", "La respuesta es casi 7".
CHANGING = (
    # not, never, except
    r"pas|jamais|sauf|nicht|keine?[mnrs]?|nie(?:mals)?|ausser|non(?!-)|nunca|excepto|tranne|nao|exceto|niet|geen|behalve|"
    r"bukan|tidak|kecuali|degil|nem|inte|ikke|khong|"
    # about, nearly, perhaps
    r"environ|presque|autour|ungefahr|etwa|rund|beinahe|knapp|aproximadamente|casi|cerca|alrededor|unos|unas|quasi|quase|"
    r"ongeveer|bijna|sekitar|kira-kira|hampir|khoang|yaklasik|okolo|prawie|ungefar|nastan|peut-etre|probablement|"
    r"vielleicht|wahrscheinlich|quizas?|tal vez|talvez|probabl?e?mente|posiblemente|forse|misschien|mungkin|"
    # less, more, between, at least
    r"moins|weniger|mehr|menos|mas|menor|meno|minder|meer|kurang|lebih|minstens|mindestens|hochstens|hoogstens|almeno|pelo|"
    r"paling|entre|zwischen|tussen|tra|fra|antara|hasta|desde|bis|jusqu'a|fino|"
    # or, and, nor
    r"ou|oder|und|weder|noch|eller|atau|veya|lub|hoac|vagy|"
    # half, double, root
    r"moitie|halb(?:e[mnrs]?)?|halfte|mitad|medio|mezzo|metade|meio|helft|setengah|doppelte?[nrs]?|doble|doppio|dobro|"
    r"dubbel|racine|wurzel|quadrat|hoch|raiz|cuadrado|quadrado|radice|quadrato|wortel|akar|fois|veces|vezes|volte|"
    # wrong
    r"falsch|faux|incorrect[ao]s?|fals[ao]|errado|sbagliato|salah"
)
# thousand, million, dozen, squared
SCALES = (
    r"mil(?:le|a)?|millon(?:es)?|milion[ei]|milhoes|milhao|milliards?|millionen|milliarden?|miliardi|tausend|duizend|ribu|"
    r"juta|docenas?|dutzend|douzaines?|dozzine|duzias?|demie?|carre"
)


def _without_accents(text: str) -> str:
    """Returns a text of the same length without accents, "reponse" for "réponse"; a lone letter keeps its own."""
    return _LATIN_WORD.sub(
        lambda m: m.group() if len(m.group()) == 1 else _MARK.sub("", unicodedata.normalize("NFD", m.group())), text
    )


def drop_foreign_lead(text: str) -> str:
    """Returns a text without the words of other languages that announce an answer, and without a counter after it."""
    for form in (_SO, _LEAD):
        if text[:1].isalpha() and (match := form.match(text if text.isascii() else _without_accents(text))):
            text = text[match.end() :]
    return text if text.isascii() else _COUNTED.sub("", _VERB_AT_END.sub("", text.rstrip(" .")))
