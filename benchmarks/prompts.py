"""English prompts for benchmarks: openings of books in the public domain, plain questions, and cuts
of them to any length in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ALICE = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: \
once or twice she had peeped into the book her sister was reading, but it had no pictures or \
conversations in it, "and what is the use of a book," thought Alice, "without pictures or conversations?" \
So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy \
and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and \
picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her. There was nothing so \
very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to \
itself, "Oh dear! Oh dear! I shall be late!" But when the Rabbit actually took a watch out of its \
waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it flashed across \
her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take out \
of it, and burning with curiosity, she ran across the field after it."""

MOBY_DICK = """\
Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, \
and nothing particular to interest me on shore, I thought I would sail about a little and see the watery \
part of the world. It is a way I have of driving off the spleen and regulating the circulation. Whenever \
I find myself growing grim about the mouth; whenever it is a damp, drizzly November in my soul; whenever \
I find myself involuntarily pausing before coffin warehouses, and bringing up the rear of every funeral I \
meet; and especially whenever my hypos get such an upper hand of me, that it requires a strong moral \
principle to prevent me from deliberately stepping into the street, and methodically knocking people's \
hats off, then, I account it high time to get to sea as soon as I can. This is my substitute for pistol \
and ball. With a philosophical flourish Cato throws himself upon his sword; I quietly take to the ship. \
There is nothing surprising in this."""

GETTYSBURG = """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in \
Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a great \
civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure. We \
are met on a great battle-field of that war. We have come to dedicate a portion of that field, as a final \
resting place for those who here gave their lives that that nation might live. It is altogether fitting \
and proper that we should do this. But, in a larger sense, we can not dedicate, we can not consecrate, we \
can not hallow this ground. The brave men, living and dead, who struggled here, have consecrated it, far \
above our poor power to add or detract."""

TWO_CITIES = """\
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of \
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it \
was the season of Darkness, it was the spring of hope, it was the winter of despair, we had everything \
before us, we had nothing before us, we were all going direct to Heaven, we were all going direct the \
other way. There were a king with a large jaw and a queen with a plain face, on the throne of England; \
there were a king with a large jaw and a queen with a fair face, on the throne of France. In both \
countries it was clearer than crystal to the lords of the State preserves of loaves and fishes, that \
things in general were settled for ever."""

PRIDE = """\
It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in \
want of a wife. However little known the feelings or views of such a man may be on his first entering a \
neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered \
as the rightful property of some one or other of their daughters. "My dear Mr. Bennet," said his lady to \
him one day, "have you heard that Netherfield Park is let at last?" Mr. Bennet replied that he had not. \
"But it is," returned she; "for Mrs. Long has just been here, and she told me all about it." Mr. Bennet \
made no answer. "Do not you want to know who has taken it?" cried his wife impatiently. "You want to tell \
me, and I have no objection to hearing it." This was invitation enough."""

SPECIES = """\
When we look to the individuals of the same variety or sub-variety of our older cultivated plants and \
animals, one of the first points which strikes us, is, that they generally differ much more from each \
other, than do the individuals of any one species or variety in a state of nature. When we reflect on the \
vast diversity of the plants and animals which have been cultivated, and which have varied during all ages \
under the most different climates and treatment, I think we are driven to conclude that this greater \
variability is simply due to our domestic productions having been raised under conditions of life not so \
uniform as, and somewhat different from, those to which the parent-species have been exposed under nature."""

LIGHTHOUSE = """\
The lamp of a lighthouse need not be large. What carries its light across thirty miles of sea is the glass \
around it: rings of prisms, each cut at its own angle, that gather what would be lost to the sky and the \
rocks and bend it into a single flat sheet. Before such lenses were made, keepers burned wood, then oil, \
then rows of candles, and a ship saw them only when it was almost too late. With the lenses came a second \
invention that is easily overlooked. The whole assembly was floated on a trough of mercury, so that a \
weight on a chain, wound up every few hours like that of a clock, could turn several tons of glass with \
hardly any friction. The sheet of light was cut into beams, the beams swept the horizon, and from the time \
between two flashes a sailor could tell which lighthouse it was. A list in the chart room gave the answer."""

BREAD = """\
To make a simple loaf of bread, mix five hundred grams of flour with ten grams of salt, seven grams of dry \
yeast and about three hundred and fifty grams of lukewarm water. Knead the dough for ten minutes until it \
is smooth and springs back when you press it with a finger. Cover the bowl and let it rest in a warm place \
until it has doubled in size, which takes an hour or two. Then shape it into a ball, put it on a tray, and \
let it rest again while the oven heats to two hundred and thirty degrees. Cut a cross into the top, bake \
the loaf for thirty-five minutes, and knock on its bottom: when it sounds hollow, it is done. Let it cool \
before you cut it."""

PASSAGES = (ALICE, MOBY_DICK, GETTYSBURG, TWO_CITIES, PRIDE, SPECIES, LIGHTHOUSE, BREAD)


@dataclass(frozen=True)
class BenchmarkPrompt:
    """name: what results call it. chat: whether the text is a user's message. tokens: cut to so many."""

    name: str
    text: str
    chat: bool = False
    tokens: int | None = None

    def ids(self, tokenizer: Any) -> list[int]:
        """The prompt's token ids, by the tokenizer's chat template where it is a message."""
        if not self.chat:
            ids: list[int] = tokenizer(self.text, add_special_tokens=False)["input_ids"]
            return ids[: self.tokens]
        message = [{"role": "user", "content": self.text}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        return ids


def passage(tokenizer: Any, tokens: int, offset: int = 0) -> list[int]:
    """`tokens` token ids of running text; each offset begins elsewhere, so that prompts share nothing."""
    texts = [PASSAGES[(offset + i) % len(PASSAGES)] for i in range(len(PASSAGES))]
    ids: list[int] = tokenizer("\n\n".join(texts), add_special_tokens=False)["input_ids"]
    start = 37 * (offset // len(PASSAGES)) % len(ids)
    while len(ids) < start + tokens:
        ids = ids + ids
    return ids[start : start + tokens]


def _cut(index: int, tokens: int) -> BenchmarkPrompt:
    texts = [PASSAGES[(index + i) % len(PASSAGES)] for i in range(len(PASSAGES))]
    return BenchmarkPrompt(f"text-{tokens}", "\n\n".join(texts), tokens=tokens)


_LENGTHS = (5, 9, 14, 22, 33, 47, 68, 96, 140, 200, 290, 400, 550, 700, 850, 1000)
TEXT_PROMPTS = tuple(_cut(i, n) for i, n in enumerate(_LENGTHS))
"""16 passages to go on with, from 5 to 1,000 tokens."""

CHAT_PROMPTS = tuple(
    BenchmarkPrompt(f"chat-{i}", text, chat=True)
    for i, text in enumerate(
        (
            "Write a short poem about the sea.",
            "Explain to a child why the moon changes its shape.",
            "List five things to take along on a hike in the mountains, and say why.",
            "Write a Python function that returns the n-th Fibonacci number.",
            f"Summarise this text in two sentences.\n\n{LIGHTHOUSE}",
            f"Rewrite this recipe as a numbered list.\n\n{BREAD}",
            f"Who speaks in this scene, and what do they want?\n\n{PRIDE}",
            f"Compare these two openings.\n\n{TWO_CITIES}\n\n{MOBY_DICK}",
        )
    )
)
"""8 messages whose answers go on for a while."""

SHORT_ANSWERS = tuple(
    BenchmarkPrompt(f"short-{i}", text, chat=True)
    for i, text in enumerate(
        (
            "What is the capital of France?",
            "How many days are there in a week?",
            "What is two plus two?",
            "What is the opposite of hot? Answer with one word.",
            "Say hello.",
            "Translate 'good morning' into Spanish.",
            "What colour is the sky on a clear day? Answer in one short sentence.",
            "Who wrote Romeo and Juliet?",
        )
    )
)
"""8 messages whose answers end after a few words."""
