"""Words that several kinds of conversation draw from: names, countries, groups of things."""
from typing import NamedTuple


class Country(NamedTuple):
    """A row of COUNTRIES."""

    name: str
    capital: str
    continent: str
    language: str


GIRLS = (
    "Alice Anna Bella Clara Daisy Ella Emma Fiona Grace Hanna Iris Ivy Julia Kate Lily Lucy Maya "
    "Mia Nina Nora Olive Poppy Rosa Ruby Sara Sophie Tina Vera Wendy Zoe"
).split()
BOYS = (
    "Adam Ben Carl Dan David Eli Felix Finn George Henry Hugo Ivan Jack Jonas Leo Liam Lucas Mark "
    "Max Milo Noah Oliver Oscar Paul Peter Robin Sam Theo Tom Toby Victor Will"
).split()
NAMES = GIRLS + BOYS

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
).split()

COUNTRIES = [
    Country(*row.split("|"))
    for row in """
France|Paris|Europe|French
Germany|Berlin|Europe|German
Italy|Rome|Europe|Italian
Spain|Madrid|Europe|Spanish
Portugal|Lisbon|Europe|Portuguese
Greece|Athens|Europe|Greek
Austria|Vienna|Europe|German
Poland|Warsaw|Europe|Polish
Norway|Oslo|Europe|Norwegian
Sweden|Stockholm|Europe|Swedish
Finland|Helsinki|Europe|Finnish
Denmark|Copenhagen|Europe|Danish
Iceland|Reykjavik|Europe|Icelandic
Ireland|Dublin|Europe|English
Hungary|Budapest|Europe|Hungarian
Romania|Bucharest|Europe|Romanian
Bulgaria|Sofia|Europe|Bulgarian
Croatia|Zagreb|Europe|Croatian
Ukraine|Kyiv|Europe|Ukrainian
Belgium|Brussels|Europe|Dutch and French
the Netherlands|Amsterdam|Europe|Dutch
the United Kingdom|London|Europe|English
the Czech Republic|Prague|Europe|Czech
Slovakia|Bratislava|Europe|Slovak
Slovenia|Ljubljana|Europe|Slovenian
Serbia|Belgrade|Europe|Serbian
Estonia|Tallinn|Europe|Estonian
Latvia|Riga|Europe|Latvian
Lithuania|Vilnius|Europe|Lithuanian
Japan|Tokyo|Asia|Japanese
China|Beijing|Asia|Chinese
South Korea|Seoul|Asia|Korean
Vietnam|Hanoi|Asia|Vietnamese
Thailand|Bangkok|Asia|Thai
Indonesia|Jakarta|Asia|Indonesian
Nepal|Kathmandu|Asia|Nepali
Mongolia|Ulaanbaatar|Asia|Mongolian
India|New Delhi|Asia|Hindi and English
Iran|Tehran|Asia|Persian
Iraq|Baghdad|Asia|Arabic
Saudi Arabia|Riyadh|Asia|Arabic
Jordan|Amman|Asia|Arabic
Turkey|Ankara|Asia|Turkish
the Philippines|Manila|Asia|Filipino and English
Egypt|Cairo|Africa|Arabic
Morocco|Rabat|Africa|Arabic
Kenya|Nairobi|Africa|Swahili and English
Ghana|Accra|Africa|English
Nigeria|Abuja|Africa|English
Ethiopia|Addis Ababa|Africa|Amharic
Senegal|Dakar|Africa|French
Tunisia|Tunis|Africa|Arabic
Canada|Ottawa|North America|English and French
Mexico|Mexico City|North America|Spanish
Cuba|Havana|North America|Spanish
the United States|Washington|North America|English
Brazil|Brasilia|South America|Portuguese
Argentina|Buenos Aires|South America|Spanish
Chile|Santiago|South America|Spanish
Peru|Lima|South America|Spanish
Colombia|Bogota|South America|Spanish
Uruguay|Montevideo|South America|Spanish
Australia|Canberra|Oceania|English
New Zealand|Wellington|Oceania|English
""".strip().splitlines()
]
CITIES = [country.capital for country in COUNTRIES]

GROUPS = {
    "fruit": "apple banana cherry grape lemon mango orange peach pear plum strawberry".split(),
    "vegetable": "carrot potato onion pea bean cabbage spinach cucumber".split(),
    "animal": "dog cat horse lion tiger rabbit mouse elephant fox bear cow".split(),
    "color": "red blue green yellow orange purple black white pink brown".split(),
    "bird": "owl eagle sparrow duck crow swan penguin parrot".split(),
    "flower": "rose tulip daisy lily sunflower violet".split(),
    "tool": "hammer saw knife ladder shovel needle".split(),
    "planet": PLANETS,
    "day": DAYS,
    "month": MONTHS,
    "season": "spring summer autumn winter".split(),
    "country": [c.name for c in COUNTRIES if not c.name.startswith("the ")][:30],
    "instrument": "piano violin drum flute guitar trumpet harp".split(),
    "shape": "circle square triangle rectangle star".split(),
}
_IRREGULAR_PLURALS = {"country": "countries", "day": "days of the week"}

JOBS = {
    "baker": "bakes bread and cakes",
    "teacher": "helps children learn",
    "doctor": "helps sick people",
    "farmer": "grows food on a farm",
    "pilot": "flies planes",
    "sailor": "works on a ship",
    "painter": "paints pictures",
    "carpenter": "builds things from wood",
    "cook": "makes meals",
    "gardener": "takes care of plants",
    "firefighter": "puts out fires",
    "writer": "writes books",
    "nurse": "cares for patients",
    "tailor": "makes clothes",
    "fisherman": "catches fish",
    "librarian": "takes care of books",
}


def group_plural(group: str) -> str:
    """The plural of a key of GROUPS."""
    return _IRREGULAR_PLURALS.get(group, group + "s")
