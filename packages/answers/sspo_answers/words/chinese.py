"""Rewrites the Chinese words around an answer: leads such as "答案是", units and counters, "or" and "and"."""

import re

_HAN = "[\u4e00-\u9fff]"
_LEAD = re.compile(
    r"^(?:【(?:答案|解答|最终答案)】|所以|因此|故|综上(?:所述)?|从而|于是|则|即|[,\s])*"
    r"(?:(?:最终|最后|正确)?(?:的)?(?:答案|结果|选项|答(?!え)|解得?)(?:应?该?[是为选])?[:\s]*|(?:本题)?应?选择?[:\s]*|等于|"
    r"(?:[一总]?共)?有|(?:[一总]?共)?需要?|[一总]?共计?)?\s*"
)
# Words before "is" that change what follows, as "is not", "about", "more than" and "if" do in English.
_NAME = re.compile(
    r"^(?![^-0-9(\[]*(?:不(?!等式|同)|非|没|未|缺|约|于|过|除|无|半|倍|之一|至|最多|最少|若|如|当|或|错|误|设|猜|可能|大概|也许|估计))"
    rf"(?=[A-Za-z\s]*{_HAN})(?:{_HAN}|[A-Za-z\s]){{1,24}}?[是为有]\s*:?\s*(?=[-0-9\\(\[{{A-Za-z])"
)
_MARKED = re.compile(r"^【([A-J]|-?[0-9.]+)】$")
_LABEL = re.compile(r"^(?:点|坐标|集合|区间)\s*[A-Z]?\s*(?=[(\[{]|\\\{)")  # of a point or a set
_OPTION = re.compile(r"(?<=[A-J])\s*(?:选项|项)$")
_IS = re.compile(rf"^[是为](?={_HAN}+$)")
_RATIO = re.compile(r"(?<=[0-9])\s*比\s*(?=[0-9])")
_NUMERAL = "[〇零一二两三四五六七八九十百]+"
_NUMERALS = re.compile(rf"^{_NUMERAL}(?=$|\s*[个只条人本张件块名位棵辆元种度]{_HAN}{{0,2}}$)")
_PART = re.compile(rf"^({_NUMERAL}|[0-9]+)分之({_NUMERAL}|[0-9]+)$")
_DIGITS = {**{digit: value for value, digit in enumerate("零一二三四五六七八九")}, "〇": 0, "两": 2}
_OR = re.compile(r"(?<=[0-9A-Za-z)}\]])\s*(?:或者?)\s*(?=[-+0-9A-Za-z(\\{\[])")
_AND = re.compile(r"(?<=[0-9A-Za-z)}\]])\s*(?:和|与|及|以及)\s*(?=[-+0-9A-Za-z(\\{\[])")
_SCALE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([万亿])")
_UNITS = {
    **dict.fromkeys(("千米", "公里"), "km"),
    "厘米": "cm",
    "毫米": "mm",
    "分米": "dm",
    "米": "m",
    **dict.fromkeys(("千克", "公斤"), "kg"),
    "克": "g",
    "吨": "tons",
    "毫升": "mL",
    "升": "L",
    **dict.fromkeys(("元", "块"), "yuan"),
    "角": "jiao",
    "分": "fen",
    "度": "degrees",
    "秒": "s",
    "分钟": "min",
    "小时": "hours",
    "时": "hours",
    "天": "days",
    "月": "months",
    "年": "years",
}
_UNIT = "|".join(_UNITS)
_QUANTITY = re.compile(rf"(?<=[0-9)}}])\s*(?P<power>平方|立方)?(?P<unit>{_UNIT})(?:\s*(?:/|每)\s*(?P<per>{_UNIT}))?$")
_COUNTED = re.compile(
    r"(?<=[0-9)}])\s*(?!次[方幂])[个只条人本张件块名位棵辆台支枝头匹种種次组页岁户层排行列颗粒朵瓶杯盒袋箱双对套间座艘架场篇首题把]"
    rf"(?:不同|(?![不或半多少约余以倍之根十百千万亿]){_HAN}){{0,5}}$"
)
_SUM = re.compile(r"^(?:[0-9]+(?:\.[0-9]+)?(?:小时|时|分钟?|秒|元|角|千米|厘米|米|千克|克)){2,4}$")
_PART_OF_SUM = re.compile(r"([0-9.]+)([^0-9.]+)")
_WEEKDAY = re.compile(r"^(?:周|礼拜)([一二三四五六日天])$")
_CONDITION = re.compile(r"^(充分|必要)而?不(充分|必要)的?(?:条件)?$")
_DATE = re.compile(r"^([0-9]{4})年([0-9]{1,2})月([0-9]{1,2})[日号]$")
_SETS = {
    **dict.fromkeys(("无解", "无实数解", "空集"), r"\emptyset"),
    **dict.fromkeys(("是", "是的"), "Yes"),
    **dict.fromkeys(("否", "不是"), "No"),
    **dict.fromkeys(("对", "对的"), "正确"),
    **dict.fromkeys(("错", "错的", "错误的"), "错误"),
    **dict.fromkeys(("全体实数", "一切实数", "任意实数", "实数集"), r"\mathbb{R}"),
}


def respell_chinese(text: str) -> str:
    """Returns a text with the usual spelling for Chinese leads, units, "or" and "and"; its other words are kept."""
    if text.strip(" .") in _SETS:
        return _SETS[text.strip(" .")]
    text = _LABEL.sub("", _MARKED.sub(r"\1", text.strip()))
    text = _LEAD.sub("", _NAME.sub("", _LEAD.sub("", text.strip()))).rstrip(". ")
    text = _IS.sub("", _OPTION.sub("", text))
    text = _RATIO.sub(":", _AND.sub(" and ", _OR.sub(" or ", text)))
    text = _PART.sub(lambda m: rf"\frac{{{_in_digits(m[2])}}}{{{_in_digits(m[1])}}}", text)
    text = _NUMERALS.sub(lambda m: _in_digits(m.group()), text)
    text = _DATE.sub(lambda m: f"{m[1]}-{m[2]:0>2}-{m[3]:0>2}", text)
    text = _SCALE.sub(lambda m: rf"{m[1]}\times 10^{{{4 if m[2] == '万' else 8}}}", text)
    text = _CONDITION.sub(r"\1不\2条件", _WEEKDAY.sub(lambda m: f"星期{m[1].replace('天', '日')}", text))
    if _SUM.fullmatch(text):
        is_time = "时" in text
        return _PART_OF_SUM.sub(
            lambda m: f"{m[1]} {'minutes' if m[2] == '分' and is_time else _UNITS[m[2]]} ", text
        ).strip()
    return _SETS.get(text, _COUNTED.sub("", _QUANTITY.sub(_unit_of, text)))


def _in_digits(numeral: str) -> str:
    """Returns the digits of a numeral below a thousand, such as 45 for 四十五; any other text as it is."""
    if numeral.isascii():
        return numeral
    value = digit = 0
    last = 1000
    for character in numeral:
        scale = {"十": 10, "百": 100}.get(character)
        if scale is None:
            if digit:
                return numeral
            digit = _DIGITS[character]
            continue
        if scale >= last:
            return numeral
        value, digit, last = value + (digit or 1) * scale, 0, scale
    return str(value + digit)


def _unit_of(match: re.Match[str]) -> str:
    power = {"平方": "square ", "立方": "cubic "}.get(match["power"] or "", "")
    per = f"/{_UNITS[match['per']]}" if match["per"] else ""
    return f" {power}{_UNITS[match['unit']]}{per}"
