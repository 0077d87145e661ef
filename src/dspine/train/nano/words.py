"""The words that nano's own text is made of.

One rule: plain data, no code. Every list is a tuple, because the order of a list is part of what a seed means.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "Mia", "Ben", "Anna", "Tom", "Lena", "Omar", "Ruth", "Sam", "Nina", "Paul", "Ivy", "Hugo", "Clara", "Leo", "Zoe",
    "Amir", "Julia", "Max", "Sofia", "Noah", "Emma", "Finn", "Lucy", "Ravi", "Grace", "Karl", "Alice", "Jonas", "Maya",
    "Peter", "Rosa", "David", "Hanna", "Oscar", "Ella", "Felix", "Sara", "Viktor", "Laura", "Simon",
)  # fmt: skip
# singular, plural: things that are counted
THINGS: Final = (
    ("apple", "apples"), ("pear", "pears"), ("orange", "oranges"), ("lemon", "lemons"), ("book", "books"),
    ("pencil", "pencils"), ("marble", "marbles"), ("coin", "coins"), ("card", "cards"), ("sticker", "stickers"),
    ("button", "buttons"), ("shell", "shells"), ("stone", "stones"), ("cookie", "cookies"), ("candle", "candles"),
    ("flower", "flowers"), ("ticket", "tickets"), ("egg", "eggs"), ("ball", "balls"), ("stamp", "stamps"),
    ("cup", "cups"), ("plate", "plates"), ("spoon", "spoons"), ("toy", "toys"), ("ribbon", "ribbons"),
    ("nut", "nuts"), ("cherry", "cherries"), ("tomato", "tomatoes"), ("carrot", "carrots"), ("potato", "potatoes"),
)  # fmt: skip
BOXES: Final = (
    ("box", "boxes"), ("bag", "bags"), ("basket", "baskets"), ("jar", "jars"), ("pack", "packs"), ("crate", "crates"),
    ("shelf", "shelves"), ("drawer", "drawers"), ("tray", "trays"), ("bucket", "buckets"),
)  # fmt: skip
FRIENDS: Final = ("friends", "cousins", "children", "neighbors", "classmates", "sisters", "brothers", "students")
PLACES: Final = ("market", "garden", "school", "library", "kitchen", "shop", "farm", "beach", "park", "station")

CAPITALS: Final = (
    ("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin"), ("Austria", "Vienna"),
    ("Poland", "Warsaw"), ("Greece", "Athens"), ("Norway", "Oslo"), ("Sweden", "Stockholm"), ("Finland", "Helsinki"),
    ("Denmark", "Copenhagen"), ("Ireland", "Dublin"), ("Portugal", "Lisbon"), ("Hungary", "Budapest"),
    ("Japan", "Tokyo"), ("China", "Beijing"), ("India", "New Delhi"), ("Egypt", "Cairo"), ("Kenya", "Nairobi"),
    ("Peru", "Lima"), ("Chile", "Santiago"), ("Cuba", "Havana"), ("Canada", "Ottawa"), ("Turkey", "Ankara"),
)  # fmt: skip
# name, class, sound, legs, home
ANIMALS: Final = (
    ("dog", "mammal", "barks", 4, "a house"), ("cat", "mammal", "meows", 4, "a house"),
    ("cow", "mammal", "moos", 4, "a farm"), ("horse", "mammal", "neighs", 4, "a stable"),
    ("sheep", "mammal", "bleats", 4, "a field"), ("lion", "mammal", "roars", 4, "the savanna"),
    ("wolf", "mammal", "howls", 4, "the forest"), ("mouse", "mammal", "squeaks", 4, "a small hole"),
    ("duck", "bird", "quacks", 2, "a pond"), ("owl", "bird", "hoots", 2, "the forest"),
    ("hen", "bird", "clucks", 2, "a farm"), ("crow", "bird", "caws", 2, "a tall tree"),
    ("frog", "amphibian", "croaks", 4, "a pond"), ("snake", "reptile", "hisses", 0, "dry grass"),
    ("bee", "insect", "buzzes", 6, "a hive"), ("cricket", "insect", "chirps", 6, "a meadow"),
)  # fmt: skip
LISTS: Final = (
    ("fruits", ("apple", "pear", "banana", "cherry", "plum", "mango", "grape")),
    ("vegetables", ("carrot", "potato", "onion", "cabbage", "pepper", "spinach", "leek")),
    ("colors", ("red", "blue", "green", "yellow", "purple", "orange", "white")),
    ("animals", ("dog", "cat", "horse", "rabbit", "tiger", "eagle", "whale")),
    ("instruments", ("piano", "violin", "guitar", "flute", "drum", "trumpet", "harp")),
    ("sports", ("tennis", "football", "swimming", "running", "chess", "hockey", "rowing")),
    ("planets", ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Neptune")),
    ("drinks", ("water", "tea", "coffee", "milk", "juice", "cocoa", "lemonade")),
    ("tools", ("hammer", "saw", "drill", "wrench", "chisel", "file", "ruler")),
    ("trees", ("oak", "pine", "birch", "maple", "willow", "beech", "cedar")),
)  # fmt: skip
HOBBIES: Final = (
    ("reading", "a book about the sea", "visit the library"), ("cooking", "a soup with beans", "learn a new recipe"),
    ("painting", "a small landscape", "draw with charcoal"), ("hiking", "the path to the lake", "climb a hill"),
    ("music", "an old folk song", "join a choir"), ("chess", "a slow opening", "solve a puzzle every day"),
    ("gardening", "herbs on the balcony", "plant tulips in autumn"),
    ("cycling", "the road by the river", "fix your brakes"),
    ("swimming", "the pool in the morning", "practice your breathing"),
    ("baking", "bread with seeds", "bake a plum cake"),
    ("photography", "portraits by a window", "walk at sunrise"),
    ("astronomy", "the rings of Saturn", "look for Mars tonight"),
)  # fmt: skip
OPPOSITES: Final = (
    ("hot", "cold"), ("big", "small"), ("fast", "slow"), ("early", "late"), ("open", "closed"), ("happy", "sad"),
    ("light", "dark"), ("full", "empty"), ("hard", "soft"), ("rich", "poor"), ("young", "old"), ("loud", "quiet"),
    ("wet", "dry"), ("clean", "dirty"), ("strong", "weak"), ("wide", "narrow"), ("near", "far"), ("high", "low"),
)  # fmt: skip
DEFINITIONS: Final = (
    ("a river", "a long stream of water that flows to a lake or to the sea", "boats, fish and mills depend on it"),
    ("a map", "a drawing of a place seen from above", "people use it to find their way"),
    ("a clock", "a device that shows the time", "it has two hands, one for hours and one for minutes"),
    ("a bridge", "a structure that carries a road over water or over a valley", "it joins two sides"),
    ("a library", "a place where many books are kept", "people borrow books there for some weeks"),
    ("a recipe", "a list of steps for cooking a dish", "it says what you need and what to do"),
    ("a garden", "a piece of land where plants are grown", "it needs water, light and care"),
    ("a loop", "a part of a program that runs again and again", "it ends when its condition is false"),
    ("a variable", "a name for a value in a program", "the value may change while the program runs"),
    ("a function", "a named part of a program that takes inputs and returns a result", "it can be called many times"),
    ("a prime number", "a whole number above one that only one and itself divide", "the first ones are 2, 3, 5 and 7"),
    ("a triangle", "a shape with three sides and three corners", "its angles add up to 180 degrees"),
    ("snow", "frozen water that falls from clouds in winter", "it covers the ground in white"),
    ("an island", "a piece of land with water all around it", "you reach it by boat or by plane"),
    ("a museum", "a building where old or beautiful things are shown", "visitors walk through it and learn"),
    ("a volcano", "a mountain that can throw out hot rock", "its soil is often good for plants"),
)  # fmt: skip
# base, past, third person, object
VERBS: Final = (
    ("walk", "walked", "walks", "to the park"), ("play", "played", "plays", "in the garden"),
    ("open", "opened", "opens", "the door"), ("paint", "painted", "paints", "the wall"),
    ("clean", "cleaned", "cleans", "the kitchen"), ("watch", "watched", "watches", "the birds"),
    ("read", "read", "reads", "a letter"), ("write", "wrote", "writes", "a story"),
    ("eat", "ate", "eats", "an orange"), ("buy", "bought", "buys", "some bread"),
    ("find", "found", "finds", "a coin"), ("bring", "brought", "brings", "the map"),
    ("make", "made", "makes", "a kite"), ("see", "saw", "sees", "a boat"),
    ("carry", "carried", "carries", "the basket"), ("wash", "washed", "washes", "the dishes"),
)  # fmt: skip
TIMES: Final = ("in the morning", "at noon", "in the evening", "on Monday", "on Friday", "after lunch", "before dinner")
ADJECTIVES: Final = (
    "red", "old", "tiny", "heavy", "green", "warm", "quiet", "round", "sweet", "broken", "bright", "empty",
)  # fmt: skip
ERRANDS: Final = (
    "water the plants", "call the doctor", "buy stamps", "feed the cat", "write a postcard", "pay the rent",
    "fix the lamp", "return the books", "wash the car", "bake a cake", "clean the windows", "visit grandma",
)  # fmt: skip
FOODS: Final = ("rice", "bread", "cheese", "soup", "salad", "noodles", "beans", "pizza", "fish", "pancakes")
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
