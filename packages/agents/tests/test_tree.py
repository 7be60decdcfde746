"""Trajectories of an episode: each sampled token is learned from once, and forced turns are observed."""

from sspo_agents.messages import Message
from sspo_agents.protocol import Sampled
from sspo_agents.tree import Tree, Turn, with_common_prompt

USER, BOT = Message("user", "x"), Message("assistant", "y")


def turn(prompt, tokens, parent=None, version=0, is_forced=False):
    sampled = Sampled(tokens, [-1.0] * len(tokens), "stop", [(version, len(tokens))])
    return Turn("[]", [USER, BOT], prompt, sampled, parent, is_forced)


def forced(prompt, tokens, parent=None):
    return turn(prompt, tokens, parent, is_forced=True)


def tree(*turns):
    made = Tree()
    made.turns += turns
    return made.trajectories()


def forked():
    """Two branches that share the turn [5, 6], and a third that begins otherwise."""
    shared = turn([2, 3, 4], [5, 6])
    left = turn([2, 3, 4, 5, 6, 7], [8], shared, version=1)
    right = turn([2, 3, 4, 5, 6, 9, 9], [10, 11], shared, version=2)
    return tree(shared, left, right, turn([2, 3, 12], [13]))


def test_branches_share_what_all_begin_with_and_learn_each_turn_once() -> None:
    found = with_common_prompt([*forked(), *tree(turn([2, 3, 4], [7]))])
    assert [each.prompt for each in found] == [[2, 3]] * 4
    assert [each.tokens for each in found] == [[4, 5, 6, 7, 8], [4, 5, 6, 9, 9, 10, 11], [12, 13], [4, 7]]
    assert [each.observed for each in found] == [[(0, 1), (3, 4)], [(0, 5)], [(0, 1)], [(0, 1)]]
    assert [each.spans for each in found] == [[(0, 2), (1, 1)], [(2, 2)], [(0, 1)], [(0, 1)]]
    assert with_common_prompt([]) == []


def test_a_forced_turn_is_observed_and_one_at_the_end_is_left_out() -> None:
    first = turn([2, 3], [4, 5])
    middle = forced([2, 3, 4, 5, 6], [7, 8], first)
    last = turn([2, 3, 4, 5, 6, 7, 8, 9], [10], middle)
    end = forced([2, 3, 4, 5, 6, 7, 8, 9, 10], [11], last)
    (found,) = tree(first, middle, last, end)
    assert found.tokens == [4, 5, 6, 7, 8, 9, 10]
    assert found.observed == [(2, 6)]
    assert found.log_probs == [-1, -1, 0, 0, 0, 0, -1]
    assert found.spans == [(0, 2), (0, 1)]


def test_a_forced_turn_that_begins_a_conversation() -> None:
    first = forced([2, 3], [4, 5])
    (found,) = tree(first, turn([2, 3, 4, 5, 6], [7], first))
    assert (found.tokens, found.observed, found.spans) == ([4, 5, 6, 7], [(0, 3)], [(0, 1)])


def test_a_branch_with_nothing_to_learn_from_is_none() -> None:
    first = turn([2, 3], [4])
    left, right = turn([2, 3, 4, 6], [7], first), forced([2, 3, 4, 8], [9], first)
    assert [found.tokens for found in tree(first, left, right)] == [[4, 6, 7]]
    assert tree(forced([2, 3], [4])) == []
