"""The demo's prompts: long enough that a small model has something to hold on to, and blocks to share."""

RECIPE = """Here is a recipe. Rewrite it as a short list of numbered steps.

Put a pot of salted water on the stove and bring it to the boil. While it heats, chop two cloves of \
garlic and a handful of parsley. When the water boils, add 200 grams of spaghetti and cook them for nine \
minutes. Warm four spoons of olive oil in a pan, add the garlic and a pinch of chilli, and take the pan \
off the heat before the garlic turns brown. Keep a cup of the cooking water, drain the spaghetti, and \
toss them in the pan with the oil, the parsley and a little of the water."""

STORY = """Suggest a short title for this story.

The lighthouse keeper had not seen a ship for eleven days. Each evening he climbed the hundred and forty \
steps, trimmed the lamp, and wrote in the book that there was nothing to write. On the twelfth evening, \
as the fog came in from the north, he heard something that was not the sea: slow, even knocking, from \
the inside of the door that he himself had locked and painted shut thirty years ago."""

EMAIL = """Write a short and friendly reply to this email. Accept the invitation and ask what to bring.

Dear Sam, on Saturday the fourteenth we are opening the new community garden behind the library. There \
will be music from three o'clock, soup from our own kitchen, and a tour of the greenhouse, where the \
first tomatoes are already red. The children of the school have painted signs for each bed. We would be \
very happy if you came, and if you would like to help us, there is still a lot to prepare in the \
morning. Warm greetings, Ines"""

ARTICLE = """Summarise this text in one sentence.

Bees find their way back to the hive by several kinds of memory. They know the position of the sun and \
correct it for the time of day; when clouds hide it, they read the polarisation of the light from a \
small patch of blue sky. Close to home they follow landmarks such as trees, walls and the edges of \
fields, which they learn on short flights around the hive when they are young. Experiments in which bees \
were carried to unknown places showed that most of them first flew in the direction that would have been \
right at the place where they were caught, and only then searched, in growing loops, for something that \
they knew."""
