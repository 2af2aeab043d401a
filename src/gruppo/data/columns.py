"""The names of the columns that `pack` makes, for readers and type checkers."""

from torch import Tensor


class Columns:
    """The columns made by `pack`; others (advantages, readouts of models, notes) are added with `with_columns`."""

    turn_N: Tensor
    uid_N: Tensor
    token_N: Tensor
    logp_gen_N: Tensor
    source_N: Tensor
    version_N: Tensor
    node_N: Tensor
    temperature_N: Tensor
    keep_N: Tensor
    weight_N: Tensor
    seq_K: Tensor
    turn_index_K: Tensor
    state_K: Tensor
    action_key_K: Tensor
    agent_K: Tensor
    flags_K: Tensor
    tag_K: Tensor  # 0: no tag
    tools_K: Tensor
    tool_seconds_K: Tensor
    seconds_K: Tensor
    reward_K: Tensor
    reward_KC: Tensor
    episode_S: Tensor
    changed_S: Tensor
    group_E: Tensor
    uid_E: Tensor
    task_E: Tensor
    reward_E: Tensor
    reward_EC: Tensor
    reward_EA: Tensor  # the return by agent; NaN where it did not act
    paid_EC: Tensor  # the component is present and not replaced
    return_EC: Tensor  # including the turns; 0 where absent or replaced
    status_E: Tensor
    use_E: Tensor
    source_E: Tensor
    replayed_E: Tensor
    final_state_E: Tensor
    domain_E: Tensor
    answer_E: Tensor  # 0: no answer found
    index_E: Tensor  # of the task in the training set
    uid_G: Tensor
    drawn_G: Tensor
    win_P: Tensor
    lose_P: Tensor
    margin_P: Tensor
