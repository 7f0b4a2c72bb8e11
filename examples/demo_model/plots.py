"""The words and plots that stories are made of: data, with slots in braces.

In: nothing. Out: constants. A plot is a row of beats, a beat a choice of sentences.
Must not know: how a story is put together.
"""

from examples.demo_model import names

# Held-out heroes are words the model knows from other tasks, but never the hero of a story.
HELD_OUT_HEROES = ("badger", "dolphin", "hamster", "otter", "panda", "seal", "whale", "zebra")
PEOPLE = names.listed(
    "girl boy king queen prince princess knight wizard witch baker farmer sailor painter teacher "
    "pirate giant dragon robot ghost fairy shepherd gardener cook singer doctor"
)
THINGS = names.listed(
    "boat train car cloud star moon tree flower teapot lamp clock kite snowman pumpkin cup book "
    "bus tractor river stone leaf drum shoe pencil balloon"
)
WOMEN = ("girl", "queen", "princess", "witch")
MEN = ("boy", "king", "prince", "wizard")
ANIMALS = tuple(animal for animal in names.ANIMALS if animal not in HELD_OUT_HEROES)
HEROES = (*ANIMALS, *PEOPLE, *THINGS)

SLOTS: dict[str, tuple[str, ...]] = {
    "adjective": (
        "little", "small", "young", "brave", "kind", "shy", "clever", "curious", "lazy", "happy",
        "gentle", "quiet", "funny", "cheerful", "lonely", "tiny", "old", "proud", "busy", "sleepy",
    ),
    "place": (
        "in a quiet forest", "by the sea", "near a wide river", "on a green hill",
        "in a small village", "at the edge of the woods", "in a sunny valley", "on a little farm",
        "beside a blue lake", "high in the mountains", "in a big garden", "near an old mill",
        "on a faraway island", "behind a tall castle", "in a busy town",
    ),
    "hobby": (
        "to sing", "to dance", "to count the stars", "to swim", "to read books", "to bake cakes",
        "to climb trees", "to watch the clouds", "to collect shells", "to paint pictures",
        "to play hide and seek", "to listen to the rain", "to run in the grass", "to tell jokes",
        "to look at the moon", "to plant flowers",
    ),
    "treasure": (
        "red ball", "golden key", "blue scarf", "silver bell", "warm hat", "old map", "green kite",
        "shiny stone", "little drum", "yellow boat", "magic ring", "wooden flute", "soft blanket",
        "big book", "bright lamp",
    ),
    "food": (
        "an apple pie", "a warm soup", "a honey cake", "fresh bread", "sweet berries",
        "a big carrot", "a bowl of nuts", "some cookies", "a ripe melon", "hot pancakes",
    ),
    "hiding": (
        "under a bush", "behind a big rock", "inside a hollow log", "under the bridge",
        "in the tall grass", "on top of the roof", "next to the well", "at the bottom of the pond",
        "behind the door", "between two trees",
    ),
    "weather": (
        "It began to rain", "A strong wind blew", "A thick fog came", "Snow began to fall",
        "Dark clouds filled the sky", "Thunder rolled over the hills",
    ),
    "shelter": (
        "a dry cave", "an old barn", "a warm kitchen", "a hollow tree", "a little hut",
        "a wooden shed",
    ),
    "skill": (
        "how to swim", "how to whistle", "how to skate", "how to juggle", "how to bake bread",
        "how to play the flute", "how to build a raft", "how to read a map",
        "how to ride a bicycle", "how to draw a star",
    ),
    "project": (
        "a tree house", "a bridge", "a raft", "a snow castle", "a swing", "a bird house",
        "a small boat", "a stone tower",
    ),
    "trouble": (
        "was stuck in the mud", "could not find the way home", "had hurt a foot",
        "was caught in a net", "had fallen into a hole", "was too tired to walk",
    ),
    "sound": (
        "a strange noise", "a soft knock", "a long howl", "a tiny squeak", "a loud bang",
        "a sad song",
    ),
    "cause": (
        "an owl in the old tree", "the wind in the leaves", "a branch on the window",
        "a kitten that was hungry", "a door that was open", "a mouse with a cold",
    ),
    "contest": (
        "a big race", "a singing contest", "a cooking contest", "a dancing contest",
        "a swimming race", "a kite contest",
    ),
    "season": ("spring", "summer", "autumn", "winter"),
}  # fmt: skip

OPENINGS = (
    "Once upon a time, there was {a_hero} named {name} who lived {place}.",
    "Once upon a time, {a_hero} named {name} lived {place}.",
    "Once upon a time, {place}, there lived {a_hero} named {name}.",
    "Long ago, {a_hero} named {name} lived {place}.",
    "There once was {a_hero} named {name} who lived {place}.",
    "{name} was {a_hero} who lived {place}.",
)
# The first three openings start alike, and a plain prompt is most often "Once upon a time".
OPENING_WEIGHTS = (3, 3, 2, 1, 2, 1)
MANNERS = (
    "{He} loved {hobby}.",
    "Every day, {he} liked {hobby}.",
    "More than anything, {name} loved {hobby}.",
    "{He} was very {adjective_two} and loved {hobby}.",
    "",
)
MEETINGS = (
    "Soon {he} met {a_friend} named {friend_name}.",
    "On the way, {he} met {a_friend} named {friend_name}.",
    "Then {a_friend} named {friend_name} came along.",
    "Just then, {he} saw {a_friend} named {friend_name}.",
)
PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lost": (
        (
            "One day, {name} could not find {his} {treasure}.",
            "One morning, {name} lost {his} {treasure}.",
            "One evening, {his} {treasure} was gone.",
        ),
        (
            "{He} looked everywhere, but it was not there.",
            "{He} looked in every corner and felt very sad.",
            "{He} searched all day and began to cry.",
        ),
        MEETINGS,
        (
            '"Do not worry," said {friend_name}. "I will help you look."',
            '"I can help you," said {friend_name}.',
            '"Let us look together," said {friend_name}.',
        ),
        (
            "They found the {treasure} {hiding}.",
            "At last, they saw the {treasure} {hiding}.",
            "After a while, {friend_name} found the {treasure} {hiding}.",
        ),
        (
            '"Thank you so much!" said {name}.',
            "{name} was so happy that {he} danced.",
            "{name} laughed and hugged {friend_name}.",
        ),
    ),
    "storm": (
        (
            "One day, {name} went for a long walk.",
            "One afternoon, {name} was far away from home.",
            "One {season} day, {name} went out to play.",
        ),
        (
            "{weather}, and {name} was afraid.",
            "{weather}, and {he} could not see the path.",
            "{weather}, and {he} was cold and wet.",
        ),
        MEETINGS,
        (
            '"Come with me," said {friend_name}. "I know {shelter}."',
            '"Quick, follow me to {shelter}!" said {friend_name}.',
        ),
        (
            "They sat in {shelter} and told stories.",
            "They stayed in {shelter} and shared {food}.",
            "Inside {shelter} it was warm and safe.",
        ),
        (
            "When the sun came back, they walked home together.",
            "In the morning, the sky was blue again.",
            "After an hour, a rainbow stood in the sky.",
        ),
    ),
    "skill": (
        (
            "{name} wanted to learn {skill}.",
            "One day, {name} decided to learn {skill}.",
            "{name} had one big wish: to learn {skill}.",
        ),
        (
            "{He} tried and tried, but it was too hard.",
            "The first time, everything went wrong.",
            "It was not easy, and {he} almost gave up.",
        ),
        MEETINGS,
        (
            '"I will teach you," said {friend_name}.',
            '"You must be patient," said {friend_name}. "Try it slowly."',
            '"Try it one more time," said {friend_name}.',
        ),
        (
            "They practiced every day until the end of {season}.",
            "They practiced from morning to evening.",
            "{name} listened well and tried again.",
        ),
        (
            "Now {name} knew {skill}, and everyone clapped.",
            "At last, {name} had learned {skill}.",
            "In the end, {name} could show all the others {skill}.",
        ),
    ),
    "sharing": (
        (
            "One day, {name} made {food}.",
            "One morning, {name} found {food} {hiding}.",
            "On {his} birthday, {name} got {food}.",
        ),
        (
            "{He} wanted to eat everything alone.",
            "It smelled so good that {he} could not wait.",
            "{He} was very hungry.",
        ),
        MEETINGS,
        (
            '"I am so hungry," said {friend_name}.',
            '"I have not eaten all day," said {friend_name}.',
            "{friend_name} looked hungry and tired.",
        ),
        (
            "{name} thought for a moment and gave {friend_name} half of it.",
            '"Sit down and eat with me," said {name}.',
            "{name} smiled and shared {food} with {friend_name}.",
        ),
        (
            "It tasted even better together.",
            "They ate and laughed until the sun went down.",
            'The next day, {friend_name} came back with {treasure_a} and said, "This is for you."',
        ),
    ),
    "rescue": (
        (
            "One day, {name} heard a cry for help.",
            "One morning, {name} heard someone call.",
            "One {season} evening, {name} heard a sad voice.",
        ),
        (
            "It was {a_friend} named {friend_name} who {trouble}.",
            "{a_friend_upper} named {friend_name} {trouble}.",
        ),
        (
            '"Please help me!" said {friend_name}.',
            '"I am so glad that you are here," said {friend_name}.',
            '"Nobody else has stopped," said {friend_name}.',
        ),
        (
            "{name} was not very strong, but {he} had an idea.",
            "{name} ran as fast as {he} could.",
            '"Hold on, I am coming!" said {name}.',
        ),
        (
            "With a long rope and a lot of work, {he} saved {friend_name}.",
            "{He} helped {friend_name} and gave {friend_him} {food}.",
            "Step by step, {he} brought {friend_name} home.",
        ),
        (
            "{friend_name} gave {name} {treasure_a} to say thank you.",
            '"You are a true friend," said {friend_name}.',
            "Everyone {place} heard about it and was proud of {name}.",
        ),
    ),
    "building": (
        (
            "One day, {name} wanted to build {project}.",
            "In {season}, {name} had a plan: {he} would build {project}.",
            "{name} dreamed of building {project}.",
        ),
        (
            "But {he} could not do it alone.",
            "It was a lot of work, and the wood was heavy.",
            "{He} worked all day, but it fell down again.",
        ),
        MEETINGS,
        (
            '"Two can do more than one," said {friend_name}.',
            '"May I help you?" said {friend_name}.',
            '"I am good with my hands," said {friend_name}.',
        ),
        (
            "They worked side by side for three days.",
            "One held the wood, and the other held the nails.",
            "They worked hard and sang a song.",
        ),
        (
            "At last, {project} was ready.",
            "In the end, they had {project}, and it was beautiful.",
            "Everyone came to look at what they had built.",
        ),
    ),
    "night": (
        (
            "One night, {name} heard {sound}.",
            "One dark night, {name} woke up because of {sound}.",
            "Late in the evening, there was {sound}.",
        ),
        (
            "{He} was afraid and hid under the blanket.",
            "{His} heart beat very fast.",
            '"Who is there?" said {name}, but nobody answered.',
        ),
        (
            "{He} took {his} {treasure} and went to look.",
            "{He} called {his} friend {friend_name}, {a_friend}, and they went to look.",
            "But {he} was also curious, so {he} opened the door.",
        ),
        (
            "It was only {cause}.",
            "There was nothing to fear, for it was {cause}.",
            "And what was it? It was {cause}.",
        ),
        (
            "{name} laughed and went back to bed.",
            "{name} smiled and was not afraid any more.",
            "Then {he} slept until the sun came up.",
        ),
    ),
    "contest": (
        (
            "One day, there was {contest}.",
            "In {season}, everyone talked about {contest}.",
            "One morning, {name} heard about {contest}.",
        ),
        (
            "{name} wanted to win more than anything.",
            "{name} was afraid to take part, but {he} said yes.",
            "{name} practiced for many days.",
        ),
        (
            "{His} rival was {a_friend} named {friend_name}.",
            "{a_friend_upper} named {friend_name} wanted to win, too.",
        ),
        (
            "In the middle of it all, {friend_name} fell down.",
            "Then {friend_name} felt ill and had to stop.",
            "But {friend_name} had lost {friend_his} {treasure} and could not go on.",
        ),
        (
            "{name} stopped and helped {friend_name}.",
            "{name} turned around and gave {friend_name} a hand.",
        ),
        (
            "They did not win, but they won a friend.",
            "In the end, they won together.",
            "The judge gave them both {treasure_a}.",
        ),
    ),
}
ENDINGS = (
    "From that day on, {name} and {friend_name} were best friends.",
    "And {name} never forgot that day.",
    "{name} went home and slept well that night.",
    "Since then, {name} has always been kind to others.",
    "And they all lived happily ever after.",
    "{name} was the happiest {hero} in the world.",
    "",
)
