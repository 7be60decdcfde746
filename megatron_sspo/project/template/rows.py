"""Writes the questions, train.jsonl and held_out.jsonl: numbers to be written backwards."""

import json
import random

draw = random.Random(0)
numbers = [f"{number:04d}" for number in range(10_000)]
draw.shuffle(numbers)

for name, part in (("train.jsonl", numbers[:4000]), ("held_out.jsonl", numbers[4000:4200])):
    with open(name, "w", encoding="utf-8") as file:
        for number in part:
            answer = number[::-1]
            # a worked response for the warm start, wrong in half of the rows, so that something is left to learn
            demonstration = answer if draw.random() < 0.5 else "".join(draw.sample(answer, 4))
            file.write(json.dumps({"question": f"{number}=", "answer": answer, "demonstration": demonstration}) + "\n")
