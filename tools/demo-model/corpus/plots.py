"""Plots of the stories and the words that fill them.

A plot is a pattern (see `patterns`). Its slots: the hero `{name}` the `{kind}` with
`{he}`/`{him}`/`{his}`, the `{friend}` with `{friend_kind}` and `{friend_he}` and so on, what the
hero loves (`{love}`, `{to_do}`, `{doing}`, `{thing}`, kept `{kept}`, with the effect `{joy}`),
places, time and weather.
"""
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of hero: where it lives and what it walks through."""

    home: str
    path: str


class Love(NamedTuple):
    """Something a hero loves."""

    to_do: str
    doing: str
    thing: str
    kept: str
    joy: str


class Plot(NamedTuple):
    """The middle of a story and the group of LESSONS that fits its end."""

    lesson: str
    pattern: str


KINDS = {
    "robot": Kind("in a small workshop at the edge of the city", "the quiet streets"),
    "fox": Kind("in a den under an old oak tree", "the forest"),
    "cat": Kind("in a warm house by the harbor", "the narrow streets"),
    "dog": Kind("on a farm with a red barn", "the fields"),
    "rabbit": Kind("in a cozy burrow near the meadow", "the meadow"),
    "bear": Kind("in a cave high in the mountains", "the forest"),
    "mouse": Kind("behind the wall of a bakery", "the kitchen"),
    "owl": Kind("in a tall pine tree", "the dark forest"),
    "frog": Kind("beside a green pond", "the wet grass"),
    "dragon": Kind("on top of a misty hill", "the valley"),
    "turtle": Kind("near a slow river", "the river bank"),
    "squirrel": Kind("in a hollow tree in the park", "the park"),
    "elephant": Kind("by a wide lake", "the tall grass"),
    "penguin": Kind("on an island of ice", "the snow"),
    "duck": Kind("on a pond behind the mill", "the reeds"),
    "hedgehog": Kind("under a pile of leaves in the garden", "the garden"),
    "girl": Kind("in a little village by the sea", "the village"),
    "boy": Kind("in a small town between two hills", "the town"),
    "wizard": Kind("in a crooked tower", "the old forest"),
    "baker": Kind("above a bakery on the main street", "the market"),
    "farmer": Kind("in a white farmhouse", "the fields"),
    "sailor": Kind("in a blue house near the harbor", "the harbor"),
    "knight": Kind("in a stone castle", "the green hills"),
    "painter": Kind("in a room full of light", "the town square"),
    "princess": Kind("in a castle on a hill", "the royal garden"),
    "giant": Kind("in a valley far from the town", "the valley"),
    "snail": Kind("under a big green leaf", "the garden"),
    "bee": Kind("in a golden hive", "the flowers"),
}

LOVES = {
    "music": Love(
        "play songs", "playing songs", "silver flute", "on a soft cushion",
        "the whole street began to dance",
    ),
    "painting": Love(
        "paint pictures", "painting pictures", "paint box", "next to the window",
        "every wall was full of color",
    ),
    "stars": Love(
        "look at the stars", "looking at the stars", "brass telescope", "on the roof",
        "the night felt warm and full of light",
    ),
    "flowers": Love(
        "grow flowers", "growing flowers", "watering can", "beside the door",
        "the air smelled sweet",
    ),
    "books": Love(
        "read stories", "reading stories", "blue book", "under the pillow",
        "everyone sat down to listen",
    ),
    "cakes": Love(
        "bake cakes", "baking cakes", "wooden spoon", "on the kitchen shelf",
        "everyone had a big slice of cake",
    ),
    "kites": Love(
        "fly kites", "flying kites", "red kite", "on a hook by the door",
        "the sky was full of color",
    ),
    "boats": Love(
        "build little boats", "building little boats", "tiny boat", "on the window sill",
        "the boats sailed like swans",
    ),
    "dancing": Love(
        "dance", "dancing", "pair of red shoes", "in a box under the bed",
        "everybody clapped and danced along",
    ),
    "trains": Love(
        "watch the trains", "watching the trains", "toy train", "on the top shelf",
        "the wheels sang on the rails",
    ),
    "shells": Love(
        "collect shells", "collecting shells", "white shell", "in a glass jar",
        "they could all hear the sea",
    ),
    "bells": Love(
        "ring bells", "ringing bells", "golden bell", "above the door",
        "the sound rang over the hills",
    ),
    "clocks": Love(
        "repair clocks", "repairing clocks", "pocket watch", "on a velvet cloth",
        "every clock in town showed the right time",
    ),
    "maps": Love(
        "draw maps", "drawing maps", "old map", "in a leather bag",
        "nobody got lost anymore",
    ),
    "lanterns": Love(
        "make lanterns", "making lanterns", "paper lantern", "beside the stairs",
        "the dark road was bright again",
    ),
    "gardens": Love(
        "work in the garden", "working in the garden", "little shovel", "in the shed",
        "there were carrots and peas for all",
    ),
    "snow": Love(
        "play in the snow", "playing in the snow", "wooden sled", "behind the house",
        "they laughed until the moon came up",
    ),
    "puzzles": Love(
        "solve puzzles", "solving puzzles", "puzzle box", "under the table",
        "the last piece fit just right",
    ),
    "soup": Love(
        "cook soup", "cooking soup", "big pot", "on the stove",
        "everyone felt warm inside",
    ),
    "drums": Love(
        "play the drum", "playing the drum", "round drum", "in the corner",
        "all feet began to tap",
    ),
    "butterflies": Love(
        "watch butterflies", "watching butterflies", "drawing book", "in a yellow bag",
        "a hundred wings shone in the sun",
    ),
    "poems": Love(
        "write poems", "writing poems", "feather pen", "in a wooden box",
        "the words made people smile",
    ),
}

TRAITS = (
    "kind brave curious shy clever cheerful quiet careful gentle lonely small friendly patient "
    "proud playful"
).split()

FRIEND_KINDS = (
    "mouse owl rabbit fox cat frog hedgehog squirrel turtle duck sparrow badger goat crow"
).split()

PLACES = [
    "under the bridge", "behind the mill", "near the well", "in the old barn", "at the market",
    "by the river", "in the tall grass", "under the apple tree", "in the attic",
    "next to the fountain", "on the hill", "in the library", "in the garden shed",
    "behind the school",
]
WEATHER = ["sunny", "rainy", "windy", "cold", "foggy", "warm", "snowy", "bright"]
TIMES = [
    "one morning", "one evening", "one day", "one afternoon", "early one morning", "one winter day",
    "one spring day", "one summer day", "one autumn day",
]

# The reason why the lost thing of the plot "lost" is where it is found.
THEFTS = [
    "the wind had blown it there",
    "a crow had taken it, because it liked shiny things",
    "a puppy had taken it, because it wanted to play",
    "a little mouse had taken it, because it needed a bed",
    "a squirrel had taken it, because it thought it was a nut",
]

LESSONS = {
    "ask": [
        "asking for help is not hard",
        "it is good to ask a friend for help",
        "two heads are better than one",
    ],
    "share": [
        "joy grows when you share it",
        "sharing makes everything better",
        "a thing is more fun when it is shared",
    ],
    "brave": [
        "being brave means trying even when you are afraid",
        "fear gets smaller when you face it",
        "even small ones can be brave",
    ],
    "practice": [
        "practice makes hard things easy",
        "every mistake is a step forward",
        "you only fail when you stop trying",
    ],
    "kind": [
        "kindness always comes back",
        "helping others is never a waste of time",
        "a kind heart finds many friends",
    ],
    "patience": [
        "good things take time",
        "patience is a quiet kind of magic",
        "waiting can be worth it",
    ],
    "home": [
        "home is where your friends are",
        "there is no place like home",
        "the best treasure was at home",
    ],
    "honest": [
        "telling the truth makes the heart light",
        "the truth is always the best way",
        "honest words build trust",
    ],
}

OPENING = """
    [Once upon a time there was|Once there was|There once was|Long ago there lived] a {trait}
    {kind} named {name}. [{name} lived {home}.|{he} lived {home}.] [More than anything, {name}
    loved {love}.|{name} loved {love} more than anything.|What {he} loved most was {love}.] [Every
    day {he} liked to {to_do}.|{he} spent many hours {doing}.|Nothing made {him} happier than
    {doing}.]
"""

ENDING = """
    [From that day on, {name} knew that {lesson}.|{name} smiled, because {he} had learned that
    {lesson}.|And {name} never forgot that {lesson}.|That night {name} thought: "{lesson}."]
"""

PLOTS = {
    "lost": Plot("ask", """
        {time} {name} woke up and [looked for|wanted to take] {his} {thing}. It was always kept
        {kept}, but now it was gone. "[Oh no|Oh dear], where is my {thing}?" [cried|said] {name}.
        {he} looked {place1}, but it was not there. {he} looked {place2}, but it was not there
        either. Then {name} met {friend} the {friend_kind}. "[Why are you sad|What is wrong]?"
        asked {friend}. "I have lost my {thing}," said {name}. "[Do not worry|Do not cry], I will
        help you," said {friend}. [Together they|The two of them] searched all day. At last
        {friend} saw something {place3}. It was the {thing}! {theft}. {name} [hugged|thanked]
        {friend} and [laughed with joy|jumped with joy]. That evening they went home together, and
        soon {joy}.
    """),
    "broken": Plot("share", """
        {time} {his} {thing} fell on the ground and broke. {name} [sat down and cried|was very
        sad|did not know what to do]. "[Now I can never {to_do} again|Without it I cannot
        {to_do}]," {he} said. {friend} the {friend_kind} heard this and came closer. "Let me see,"
        said {friend}. {friend_he} [took out|opened] a small box with [glue and string|tools and
        nails|thread and wood]. [They worked|The friends worked] until [the sun went down|it was
        dark]. In the end the {thing} was [as good as new|even better than before]. "How can I
        thank you?" asked {name}. "[Teach me to {to_do}|Let me {to_do} with you]," said {friend}.
        So they spent the next day {doing} together, and {joy}.
    """),
    "fear": Plot("brave", """
        But {name} had a secret. {he} was afraid of [the dark|deep water|thunder|high places].
        {time} {friend} the {friend_kind} did not come home. "[Somebody must find {friend}|We have
        to find {friend}]," said the others, but nobody dared to go. {name} [took a deep
        breath|felt {his} heart beat fast]. "I will go," {he} said. {he} walked through {path},
        step by step, and [thought of|hummed a little song about] {love} to feel brave. {place1}
        {he} heard a small voice. "[Help|I am here]!" called {friend}. "[My foot is stuck|I am
        lost and cold]." {name} [helped {friend_him} up|took {friend_his} hand], and they walked
        home side by side. Everyone cheered, and {joy}.
    """),
    "practice": Plot("practice", """
        {time} a [sign|letter] came: there would be a big festival in town. {name} wanted to [show
        everyone how to {to_do}|take part]. {he} tried once, but it went wrong. {he} tried again,
        and it went wrong again. "[I will never be good at this|I give up]," said {name}. {friend}
        the {friend_kind} sat down next to {him}. "[The first time I tried, I fell down too|I also
        made many mistakes at first]," {friend_he} said. "[Try a little every day|Go slowly and
        try again]." So {name} practiced every morning and every evening. After [ten days|two
        weeks|a month] the festival began. {name} [was nervous|felt very small], but {he} [took a
        breath and started|began]. Everything went well, and {joy}. [The crowd cheered|Everyone
        clapped].
    """),
    "help": Plot("kind", """
        {time} {name} was on the way to a big festival with {his} {thing}. The day was {weather}.
        On the road {he} saw {friend} the {friend_kind}, who [could not cross the river|had a
        heavy bag|had lost the way home]. "[Can you help me|Please help me]," said {friend}.
        {name} [looked at the road|thought about the festival]. If {he} stopped, {he} would be
        late. But {name} [put down the {thing}|smiled] and helped {friend} all the same. When they
        came to the town, the festival was over. {name} was [a little sad|quiet]. "[Wait here|Do
        not be sad]," said {friend}. {friend_he} called all {friend_his} friends, and they made a
        new festival [in the meadow|under the stars|by the lake], just for {name}. Soon {joy}.
    """),
    "gift": Plot("kind", """
        {time} it was the birthday of {friend} the {friend_kind}, the best friend of {name}.
        {name} wanted to give {friend_him} a present, but {he} had no [money|coins]. {he} [sat
        {place1} and thought|thought for a long time]. "[I know|I have an idea]!" said {name}. "I
        can make something with my own hands." {he} took some [paper and string|old wood|bright
        cloth] and worked all night. In the morning the present was ready: a little
        [box|picture|toy] with the name {friend} on it. {friend} [opened the present and
        gasped|looked at it with big eyes]. "[This is the best present of all|I love it], because
        you made it for me," {friend_he} said. Then they spent the day {doing}, and {joy}.
    """),
    "friend": Plot("home", """
        But {name} was often alone and wished for a friend. {time} {he} met {friend} the
        {friend_kind} {place1}. {friend} [was new in town|came from far away] and [did not know
        anyone|looked a little lost]. "Hello," said {name}. "Do you like {love}?" "[I do not
        know|I have never tried]," said {friend}. "Can you show me?" {name} [showed {friend_him}
        the {thing}|took {friend_him} home and showed {friend_him} the {thing}]. {friend}
        [laughed|clapped]. "Now I will show you something too," said {friend}, and they went to
        [see the river|climb the hill|pick berries]. [By evening|When the sun went down] they were
        best friends, and {joy}.
    """),
    "noise": Plot("brave", """
        {time}, when everyone was asleep, {name} heard a strange noise {place1}. [Tap, tap,
        tap|Knock, knock, knock|Crack, crack, crack]. "[What can it be|Is it a ghost]?" whispered
        {name}. {he} [took a lantern|put on a coat] and went outside. The noise grew louder.
        {name} wanted to run away, but {he} was too curious. {he} looked {place1} and found
        {friend} the {friend_kind}, [cold and wet|hungry and tired]. "[I am sorry|Excuse me],"
        said {friend}. "[I only wanted to find a warm place|I was looking for food]." {name}
        laughed, because there was nothing to be afraid of. {he} gave {friend} [some soup and a
        blanket|bread and warm milk]. The next day they spent the whole morning {doing}, and
        {joy}.
    """),
    "seed": Plot("patience", """
        {time} {friend} the {friend_kind} gave {name} a tiny seed. "[Plant it and wait|Take care
        of it]," said {friend}. "It is a special seed." {name} planted it {place1} and gave it
        water. The next day nothing happened. After a week there was still nothing. "[This seed is
        broken|It will never grow]," said {name}. But {friend} said: "[Wait a little longer|Be
        patient]." {name} watered it every day and passed the time {doing}. Then, after a [rainy
        night|long winter|warm night], a green leaf came up. It grew and grew, until it was a
        [tall tree full of apples|big yellow sunflower|tree with golden leaves]. {name} and
        {friend} sat under it, and {joy}.
    """),
    "wish": Plot("home", """
        {time} {name} found [a golden lamp|a shiny coin|a little star] {place1}. A soft voice
        said: "[I will give you one wish|You may make one wish]." {name} thought about it for a
        long time. {he} could wish for [gold|a castle|a crown]. {he} could wish to be [big and
        strong|the king of the land]. Then {he} saw {friend} the {friend_kind}, who [was ill|had
        no home|was cold and hungry]. "I wish that {friend} may be [well|happy] again," said
        {name}. There was a flash of light, and {friend} [began to smile|stood up and laughed].
        "You could have had anything," said {friend}. "[I already have everything I need|I have my
        friends and my {thing}]," said {name}. They went home, and soon {joy}.
    """),
    "truth": Plot("honest", """
        {time} {name} visited {friend} the {friend_kind}. {friend} had a beautiful [glass
        bowl|blue vase|old lamp], and {name} was not careful. It fell down and broke. Nobody had
        seen it. {name} [wanted to run away|hid the pieces {place1}]. But all day {he} felt bad,
        and even {doing} was no fun. In the evening {name} went back. "[I broke it|It was me],"
        {he} said. "I am sorry." {friend} was quiet for a moment. Then {friend_he} smiled. "[Thank
        you for telling me|It takes courage to tell the truth]," said {friend}. "Come, we will
        make a new one." They worked together, and afterwards {joy}.
    """),
    "storm": Plot("share", """
        {time} a great storm came over the land. The wind blew down the house of {friend} the
        {friend_kind}. {friend} stood in the rain with nothing but a small bag. "[Come in|Come
        inside], there is room for two," said {name}. {he} gave {friend} [a dry blanket|a warm
        coat] and a bowl of soup. [All night the storm roared|The storm went on all night]. To
        pass the time, {name} showed {friend} {his} {thing}. In the morning the sky was clear.
        {name} and {friend} [built a new house {place1}|built a new house together]. It took
        [three days|a whole week]. When it was ready they had a party, and {joy}.
    """),
    "journey": Plot("home", """
        {time} {name} heard of a treasure far away, {place1}. "[I will find it|I must see it],"
        said {name}, and packed some bread and {his} {thing}. First {he} came to a wide river.
        {friend} the {friend_kind} had a boat and took {him} across. "[May I come with you|Can I
        come too]?" asked {friend}. Then they climbed a steep mountain and walked through a dark
        cave. At last they found a [wooden|golden|dusty] box. Inside there was only a note: "[The
        road is the treasure|Look who is next to you]." {name} [looked at {friend} and
        laughed|began to laugh]. They walked home slowly and told stories all the way. When they
        were home, {joy}.
    """),
    "quarrel": Plot("share", """
        {time} {name} and {friend} the {friend_kind} both wanted the {thing}. "It is mine!"
        [said|shouted] {name}. "But I want to {to_do} too!" said {friend}. They pulled and pulled,
        until both of them fell into the mud. For a moment it was quiet. Then {name} began to
        laugh, and {friend} laughed too. "We look like two [pigs|potatoes]," said {friend}. "[I am
        sorry|Let us not fight]," said {name}. "You can have it in the morning, and I will have it
        in the evening." But the next day they found out that {doing} was much more fun together,
        and {joy}.
    """),
}
