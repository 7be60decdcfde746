"""Laws of the plan of a batch, and examples in which sharing prompts pays or does not."""

from hypothesis import given
from hypothesis import strategies as st

from megatron_sspo.batching.pack import pack
from megatron_sspo.batching.plan import Packing, SharingCandidates
from megatron_sspo.batching.work import Work


def groups_of(*groups):
    """Returns groups from (tokens of the prompt, tokens of each response)."""
    found, number = [], 0
    for prompt, responses in groups:
        found.append(SharingCandidates(prompt, tuple(responses), tuple(range(number, number + len(responses)))))
        number += len(responses)
    return found


def flat(plan):
    return [[[i for part in parts for i in part] for parts in of_rank] for of_rank in plan]


def sizes(plan):
    return sorted((len(part) for of_rank in plan for parts in of_rank for part in parts), reverse=True)


groups_strategy = st.lists(
    st.tuples(st.integers(1, 40), st.lists(st.integers(0, 30), min_size=1, max_size=9)), max_size=9
)


@given(groups_strategy, st.integers(1, 5), st.integers(1, 4), st.integers(70, 400), st.booleans())
def test_every_sequence_once_within_the_limit_and_parts_within_groups(groups, ranks, section_multiple, cap, share):
    groups = groups_of(*groups)
    packing = Packing(num_ranks=ranks, max_tokens=cap + 3, section_multiple=section_multiple, multiple_of=2)
    plan = packing.plan(groups, share_prompts=share)
    assert sorted(i for rank in flat(plan) for part in rank for i in part) == [i for g in groups for i in g.indices]
    assert len(plan) == ranks and len({len(of_rank) for of_rank in plan}) == 1 and len(plan[0]) % 2 == 0
    owner = {index: group for group in groups for index in group.indices}
    for parts in (parts for of_rank in plan for parts in of_rank):
        tokens = 0
        for part in parts:
            assert len({id(owner[i]) for i in part}) == 1
            assert len(part) == 1 or owner[part[0]].prompt > 1
            group = owner[part[0]]
            tokens += packing.part_tokens(group.prompt, [group.responses[i - group.indices[0]] for i in part])
        assert tokens <= cap + 3
    assert packing.plan(groups, share_prompts=share) == plan


@given(groups_strategy, st.integers(1, 5))
def test_without_sharing_it_is_the_packing_of_sequences(groups, ranks):
    groups = groups_of(*groups)
    lengths = [group.prompt + response for group in groups for response in group.responses]
    plan = Packing(num_ranks=ranks, max_tokens=100).plan(groups, share_prompts=False)
    assert flat(plan) == pack(lengths, num_ranks=ranks, max_tokens=100)
    assert set(sizes(plan)) <= {1}


def test_a_group_is_cut_where_a_microbatch_forces_it():
    packing = Packing(num_ranks=1, max_tokens=220)
    plan = packing.plan(groups_of((100, [50] * 4)), share_prompts=True)
    assert sizes(plan) == [2, 2] and len(plan[0]) == 2  # 99 + 2 · 51 each


def test_a_group_is_cut_for_ranks_that_would_have_nothing_to_do():
    assert sizes(Packing(num_ranks=2, max_tokens=1000).plan(groups_of((20, [50] * 4)), share_prompts=True)) == [2, 2]


def test_the_cheaper_plan_may_be_that_of_single_sequences():
    # 27 tokens on the slower rank; with prompts shared, 4 − 1 + 3 · 11 on one of them, or 4 − 1 + 2 · 11 and 14
    plan = Packing(num_ranks=3, max_tokens=1000).plan(groups_of((4, [10] * 3)), share_prompts=True)
    assert sizes(plan) == [1, 1, 1]


def test_sharing_that_saves_less_than_it_costs():
    groups = groups_of((21, [500, 500]))  # 20 of 1,042 tokens are saved
    for cost, expected in ((1.0, [2]), (1.1, [1, 1])):
        packing = Packing(num_ranks=1, max_tokens=2000, sharing_cost=cost)
        assert sizes(packing.plan(groups, share_prompts=True)) == expected


def test_a_prompt_of_one_token_is_not_shared():
    assert sizes(Packing(num_ranks=1, max_tokens=1000).plan(groups_of((1, [5] * 4)), share_prompts=True)) == [1] * 4


def test_padding_of_sections_counts():
    # alone 8 tokens each; together the prompt of 3 − 1 takes 8, and each 1 + 4 take 8 more
    packing = Packing(num_ranks=1, max_tokens=1000, section_multiple=8)
    assert packing.part_tokens(3, [4]) == 8 and packing.part_tokens(3, [4, 4]) == 24
    assert sizes(packing.plan(groups_of((3, [4, 4])), share_prompts=True)) == [1, 1]


def test_the_work_of_a_part_is_what_its_tokens_attend_to():
    packing = Packing(num_ranks=1, max_tokens=1000, work=Work(token=0, pair=1))
    assert packing.part_work(3, [4]) == 7 * 8 // 2
    # two tokens are shared; each of 1 + 4 others attends to both of them, and to those before it and itself
    assert packing.part_work(3, [4, 4]) == 3 + 2 * (5 * 2 + 15 + 10)
