from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RankBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RANK_BY_UNSPECIFIED: _ClassVar[RankBy]
    RANK_BY_CUMULATIVE_LOGPROB: _ClassVar[RankBy]
    RANK_BY_MEAN_LOGPROB: _ClassVar[RankBy]
    RANK_BY_NONE: _ClassVar[RankBy]

class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EARLY_STOPPING_UNSPECIFIED: _ClassVar[EarlyStopping]
    EARLY_STOPPING_FALSE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_TRUE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_NEVER: _ClassVar[EarlyStopping]

class CatalogueEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CATALOGUE_END_UNSPECIFIED: _ClassVar[CatalogueEnd]
    CATALOGUE_END_EOS: _ClassVar[CatalogueEnd]
    CATALOGUE_END_ITEM: _ClassVar[CatalogueEnd]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_GENERATING: _ClassVar[NodeState]
    NODE_STATE_STOPPED: _ClassVar[NodeState]
    NODE_STATE_FINISHED: _ClassVar[NodeState]

class NodeReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_REASON_UNSPECIFIED: _ClassVar[NodeReason]
    NODE_REASON_EOS: _ClassVar[NodeReason]
    NODE_REASON_STOP: _ClassVar[NodeReason]
    NODE_REASON_STEP: _ClassVar[NodeReason]
    NODE_REASON_LENGTH: _ClassVar[NodeReason]
    NODE_REASON_CANCELLED: _ClassVar[NodeReason]
    NODE_REASON_PRUNED: _ClassVar[NodeReason]
    NODE_REASON_FAILED: _ClassVar[NodeReason]
RANK_BY_UNSPECIFIED: RankBy
RANK_BY_CUMULATIVE_LOGPROB: RankBy
RANK_BY_MEAN_LOGPROB: RankBy
RANK_BY_NONE: RankBy
EARLY_STOPPING_UNSPECIFIED: EarlyStopping
EARLY_STOPPING_FALSE: EarlyStopping
EARLY_STOPPING_TRUE: EarlyStopping
EARLY_STOPPING_NEVER: EarlyStopping
CATALOGUE_END_UNSPECIFIED: CatalogueEnd
CATALOGUE_END_EOS: CatalogueEnd
CATALOGUE_END_ITEM: CatalogueEnd
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_GENERATING: NodeState
NODE_STATE_STOPPED: NodeState
NODE_STATE_FINISHED: NodeState
NODE_REASON_UNSPECIFIED: NodeReason
NODE_REASON_EOS: NodeReason
NODE_REASON_STOP: NodeReason
NODE_REASON_STEP: NodeReason
NODE_REASON_LENGTH: NodeReason
NODE_REASON_CANCELLED: NodeReason
NODE_REASON_PRUNED: NodeReason
NODE_REASON_FAILED: NodeReason

class Prompt(_message.Message):
    __slots__ = ("text", "chat", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: Chat
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("prompt", "greedy", "sample", "best_of", "beam", "diverse_beam", "stochastic_beam", "options", "request_id", "stream")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    BEAM_FIELD_NUMBER: _ClassVar[int]
    DIVERSE_BEAM_FIELD_NUMBER: _ClassVar[int]
    STOCHASTIC_BEAM_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    greedy: Greedy
    sample: Sample
    best_of: BestOf
    beam: Beam
    diverse_beam: DiverseBeam
    stochastic_beam: StochasticBeam
    options: Options
    request_id: str
    stream: bool
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., greedy: _Optional[_Union[Greedy, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ..., best_of: _Optional[_Union[BestOf, _Mapping]] = ..., beam: _Optional[_Union[Beam, _Mapping]] = ..., diverse_beam: _Optional[_Union[DiverseBeam, _Mapping]] = ..., stochastic_beam: _Optional[_Union[StochasticBeam, _Mapping]] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., request_id: _Optional[str] = ..., stream: bool = ...) -> None: ...

class Greedy(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sample(_message.Message):
    __slots__ = ("n", "sampling")
    N_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    n: int
    sampling: Sampling
    def __init__(self, n: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class BestOf(_message.Message):
    __slots__ = ("best_of", "n", "sampling", "rank_by", "first_finished")
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RANK_BY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FINISHED_FIELD_NUMBER: _ClassVar[int]
    best_of: int
    n: int
    sampling: Sampling
    rank_by: RankBy
    first_finished: int
    def __init__(self, best_of: _Optional[int] = ..., n: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., rank_by: _Optional[_Union[RankBy, str]] = ..., first_finished: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class Beam(_message.Message):
    __slots__ = ("width", "num_return_sequences", "length_penalty", "early_stopping", "patience", "widths", "sibling_penalty", "scorer")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    NUM_RETURN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    SIBLING_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    width: int
    num_return_sequences: int
    length_penalty: float
    early_stopping: EarlyStopping
    patience: float
    widths: _containers.RepeatedScalarFieldContainer[int]
    sibling_penalty: float
    scorer: HypothesisScorer
    def __init__(self, width: _Optional[int] = ..., num_return_sequences: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ..., patience: _Optional[float] = ..., widths: _Optional[_Iterable[int]] = ..., sibling_penalty: _Optional[float] = ..., scorer: _Optional[_Union[HypothesisScorer, _Mapping]] = ...) -> None: ...

class HypothesisScorer(_message.Message):
    __slots__ = ("length_normalised", "contrastive")
    LENGTH_NORMALISED_FIELD_NUMBER: _ClassVar[int]
    CONTRASTIVE_FIELD_NUMBER: _ClassVar[int]
    length_normalised: LengthNormalised
    contrastive: Contrastive
    def __init__(self, length_normalised: _Optional[_Union[LengthNormalised, _Mapping]] = ..., contrastive: _Optional[_Union[Contrastive, _Mapping]] = ...) -> None: ...

class LengthNormalised(_message.Message):
    __slots__ = ("alpha",)
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    alpha: float
    def __init__(self, alpha: _Optional[float] = ...) -> None: ...

class Contrastive(_message.Message):
    __slots__ = ("baseline", "weight")
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    baseline: _containers.RepeatedScalarFieldContainer[float]
    weight: float
    def __init__(self, baseline: _Optional[_Iterable[float]] = ..., weight: _Optional[float] = ...) -> None: ...

class DiverseBeam(_message.Message):
    __slots__ = ("width", "groups", "diversity_penalty", "num_return_sequences", "length_penalty", "early_stopping", "scorer")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NUM_RETURN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    width: int
    groups: int
    diversity_penalty: float
    num_return_sequences: int
    length_penalty: float
    early_stopping: EarlyStopping
    scorer: HypothesisScorer
    def __init__(self, width: _Optional[int] = ..., groups: _Optional[int] = ..., diversity_penalty: _Optional[float] = ..., num_return_sequences: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ..., scorer: _Optional[_Union[HypothesisScorer, _Mapping]] = ...) -> None: ...

class StochasticBeam(_message.Message):
    __slots__ = ("width", "sampling")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    width: int
    sampling: Sampling
    def __init__(self, width: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ...) -> None: ...

class Options(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "include_stop", "ignore_eos", "repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "logit_bias", "bad_words", "allowed_token_ids", "forced_prefix_text", "forced_prefix_ids", "return_logprobs", "update_every", "update_beams", "priority", "cache_salt", "constraint")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FORCED_PREFIX_TEXT_FIELD_NUMBER: _ClassVar[int]
    FORCED_PREFIX_IDS_FIELD_NUMBER: _ClassVar[int]
    RETURN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_EVERY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_BEAMS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    include_stop: bool
    ignore_eos: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: _containers.ScalarMap[int, float]
    bad_words: _containers.RepeatedCompositeFieldContainer[BadWord]
    allowed_token_ids: TokenIds
    forced_prefix_text: str
    forced_prefix_ids: TokenIds
    return_logprobs: int
    update_every: int
    update_beams: int
    priority: int
    cache_salt: str
    constraint: Constraint
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., include_stop: bool = ..., ignore_eos: bool = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., no_repeat_ngram_size: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., bad_words: _Optional[_Iterable[_Union[BadWord, _Mapping]]] = ..., allowed_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., forced_prefix_text: _Optional[str] = ..., forced_prefix_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., return_logprobs: _Optional[int] = ..., update_every: _Optional[int] = ..., update_beams: _Optional[int] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("regex", "json_schema", "lark", "gbnf", "catalogue")
    REGEX_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    GBNF_FIELD_NUMBER: _ClassVar[int]
    CATALOGUE_FIELD_NUMBER: _ClassVar[int]
    regex: str
    json_schema: str
    lark: str
    gbnf: str
    catalogue: FromCatalogue
    def __init__(self, regex: _Optional[str] = ..., json_schema: _Optional[str] = ..., lark: _Optional[str] = ..., gbnf: _Optional[str] = ..., catalogue: _Optional[_Union[FromCatalogue, _Mapping]] = ...) -> None: ...

class FromCatalogue(_message.Message):
    __slots__ = ("name", "end")
    NAME_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    name: str
    end: CatalogueEnd
    def __init__(self, name: _Optional[str] = ..., end: _Optional[_Union[CatalogueEnd, str]] = ...) -> None: ...

class BadWord(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class DecodeEvent(_message.Message):
    __slots__ = ("request_id", "started", "deltas", "candidates_finished", "committed", "beam_update", "finished")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FINISHED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    BEAM_UPDATE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    started: Started
    deltas: _containers.RepeatedCompositeFieldContainer[Delta]
    candidates_finished: _containers.RepeatedCompositeFieldContainer[CandidateFinished]
    committed: Committed
    beam_update: BeamUpdate
    finished: Finished
    def __init__(self, request_id: _Optional[str] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., deltas: _Optional[_Iterable[_Union[Delta, _Mapping]]] = ..., candidates_finished: _Optional[_Iterable[_Union[CandidateFinished, _Mapping]]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., beam_update: _Optional[_Union[BeamUpdate, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("candidate", "token_ids", "text", "logprobs")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    candidate: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, candidate: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class CandidateFinished(_message.Message):
    __slots__ = ("candidate", "finish_reason", "cumulative_logprob")
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    candidate: int
    finish_reason: FinishReason
    cumulative_logprob: float
    def __init__(self, candidate: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., cumulative_logprob: _Optional[float] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("token_ids", "text")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ...) -> None: ...

class BeamUpdate(_message.Message):
    __slots__ = ("generated_tokens", "beams", "finished")
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    generated_tokens: int
    beams: _containers.RepeatedCompositeFieldContainer[LiveBeam]
    finished: int
    def __init__(self, generated_tokens: _Optional[int] = ..., beams: _Optional[_Iterable[_Union[LiveBeam, _Mapping]]] = ..., finished: _Optional[int] = ...) -> None: ...

class LiveBeam(_message.Message):
    __slots__ = ("hypothesis_id", "parent_id", "token_ids", "text", "score")
    HYPOTHESIS_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    hypothesis_id: int
    parent_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    score: float
    def __init__(self, hypothesis_id: _Optional[int] = ..., parent_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("candidates", "usage", "prompt_token_ids", "seed", "exhausted")
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    usage: Usage
    prompt_token_ids: TokenIds
    seed: int
    exhausted: bool
    def __init__(self, candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., prompt_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., seed: _Optional[int] = ..., exhausted: bool = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("index", "token_ids", "text", "finish_reason", "cumulative_logprob", "selection_logprob", "score", "logprobs", "item")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SELECTION_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    finish_reason: FinishReason
    cumulative_logprob: float
    selection_logprob: float
    score: float
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    item: str
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., cumulative_logprob: _Optional[float] = ..., selection_logprob: _Optional[float] = ..., score: _Optional[float] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., item: _Optional[str] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "selection_logprob", "top", "top_processed")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SELECTION_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    selection_logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopToken]
    top_processed: _containers.RepeatedCompositeFieldContainer[TopToken]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., selection_logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopToken, _Mapping]]] = ..., top_processed: _Optional[_Iterable[_Union[TopToken, _Mapping]]] = ...) -> None: ...

class TopToken(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "generated_tokens", "peak_unshared_blocks", "peak_unique_blocks", "unshared_block_steps", "unique_block_steps", "copies", "preemptions", "recomputed_tokens", "swapped_blocks", "steps", "queue_time", "time_to_first_token", "time_per_token", "total_time")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PEAK_UNSHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PEAK_UNIQUE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    UNSHARED_BLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_BLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIME_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    peak_unshared_blocks: int
    peak_unique_blocks: int
    unshared_block_steps: int
    unique_block_steps: int
    copies: int
    preemptions: int
    recomputed_tokens: int
    swapped_blocks: int
    steps: int
    queue_time: float
    time_to_first_token: float
    time_per_token: float
    total_time: float
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., peak_unshared_blocks: _Optional[int] = ..., peak_unique_blocks: _Optional[int] = ..., unshared_block_steps: _Optional[int] = ..., unique_block_steps: _Optional[int] = ..., copies: _Optional[int] = ..., preemptions: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., swapped_blocks: _Optional[int] = ..., steps: _Optional[int] = ..., queue_time: _Optional[float] = ..., time_to_first_token: _Optional[float] = ..., time_per_token: _Optional[float] = ..., total_time: _Optional[float] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("prompt", "continuations", "top_logprobs", "priority", "cache_salt", "request_id")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    continuations: _containers.RepeatedCompositeFieldContainer[Continuation]
    top_logprobs: int
    priority: int
    cache_salt: str
    request_id: str
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., continuations: _Optional[_Iterable[_Union[Continuation, _Mapping]]] = ..., top_logprobs: _Optional[int] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("continuations", "usage", "prompt_token_ids", "request_id")
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    continuations: _containers.RepeatedCompositeFieldContainer[ScoredContinuation]
    usage: Usage
    prompt_token_ids: TokenIds
    request_id: str
    def __init__(self, continuations: _Optional[_Iterable[_Union[ScoredContinuation, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., prompt_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class ScoredContinuation(_message.Message):
    __slots__ = ("token_ids", "text", "cumulative_logprob", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    cumulative_logprob: float
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., cumulative_logprob: _Optional[float] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TreeCommand(_message.Message):
    __slots__ = ("command_id", "open_tree", "resume_tree", "close_tree", "fork_node", "decode_nodes", "extend_node", "score_nodes", "prune_nodes", "truncate_node", "pin_nodes", "unpin_nodes", "stop_nodes", "finish_nodes", "export_nodes", "import_nodes")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OPEN_TREE_FIELD_NUMBER: _ClassVar[int]
    RESUME_TREE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TREE_FIELD_NUMBER: _ClassVar[int]
    FORK_NODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_NODES_FIELD_NUMBER: _ClassVar[int]
    EXTEND_NODE_FIELD_NUMBER: _ClassVar[int]
    SCORE_NODES_FIELD_NUMBER: _ClassVar[int]
    PRUNE_NODES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_NODE_FIELD_NUMBER: _ClassVar[int]
    PIN_NODES_FIELD_NUMBER: _ClassVar[int]
    UNPIN_NODES_FIELD_NUMBER: _ClassVar[int]
    STOP_NODES_FIELD_NUMBER: _ClassVar[int]
    FINISH_NODES_FIELD_NUMBER: _ClassVar[int]
    EXPORT_NODES_FIELD_NUMBER: _ClassVar[int]
    IMPORT_NODES_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    open_tree: OpenTree
    resume_tree: ResumeTree
    close_tree: CloseTree
    fork_node: ForkNode
    decode_nodes: DecodeNodes
    extend_node: ExtendNode
    score_nodes: ScoreNodes
    prune_nodes: PruneNodes
    truncate_node: TruncateNode
    pin_nodes: PinNodes
    unpin_nodes: UnpinNodes
    stop_nodes: StopNodes
    finish_nodes: FinishNodes
    export_nodes: ExportNodes
    import_nodes: ImportNodes
    def __init__(self, command_id: _Optional[int] = ..., open_tree: _Optional[_Union[OpenTree, _Mapping]] = ..., resume_tree: _Optional[_Union[ResumeTree, _Mapping]] = ..., close_tree: _Optional[_Union[CloseTree, _Mapping]] = ..., fork_node: _Optional[_Union[ForkNode, _Mapping]] = ..., decode_nodes: _Optional[_Union[DecodeNodes, _Mapping]] = ..., extend_node: _Optional[_Union[ExtendNode, _Mapping]] = ..., score_nodes: _Optional[_Union[ScoreNodes, _Mapping]] = ..., prune_nodes: _Optional[_Union[PruneNodes, _Mapping]] = ..., truncate_node: _Optional[_Union[TruncateNode, _Mapping]] = ..., pin_nodes: _Optional[_Union[PinNodes, _Mapping]] = ..., unpin_nodes: _Optional[_Union[UnpinNodes, _Mapping]] = ..., stop_nodes: _Optional[_Union[StopNodes, _Mapping]] = ..., finish_nodes: _Optional[_Union[FinishNodes, _Mapping]] = ..., export_nodes: _Optional[_Union[ExportNodes, _Mapping]] = ..., import_nodes: _Optional[_Union[ImportNodes, _Mapping]] = ...) -> None: ...

class OpenTree(_message.Message):
    __slots__ = ("prompt", "seed", "cache_salt", "limits")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    seed: int
    cache_salt: str
    limits: TreeLimits
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ..., seed: _Optional[int] = ..., cache_salt: _Optional[str] = ..., limits: _Optional[_Union[TreeLimits, _Mapping]] = ...) -> None: ...

class ResumeTree(_message.Message):
    __slots__ = ("tree", "secret")
    TREE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    tree: str
    secret: str
    def __init__(self, tree: _Optional[str] = ..., secret: _Optional[str] = ...) -> None: ...

class CloseTree(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TreeLimits(_message.Message):
    __slots__ = ("max_nodes", "max_depth", "max_tokens", "max_blocks", "idle_ttl")
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TTL_FIELD_NUMBER: _ClassVar[int]
    max_nodes: int
    max_depth: int
    max_tokens: int
    max_blocks: int
    idle_ttl: float
    def __init__(self, max_nodes: _Optional[int] = ..., max_depth: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_blocks: _Optional[int] = ..., idle_ttl: _Optional[float] = ...) -> None: ...

class ForkNode(_message.Message):
    __slots__ = ("node", "n", "seeds")
    NODE_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    node: int
    n: int
    seeds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node: _Optional[int] = ..., n: _Optional[int] = ..., seeds: _Optional[_Iterable[int]] = ...) -> None: ...

class DecodeNodes(_message.Message):
    __slots__ = ("nodes", "greedy", "sample", "options", "step", "seeds")
    NODES_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    greedy: Greedy
    sample: Sample
    options: Options
    step: _containers.RepeatedScalarFieldContainer[str]
    seeds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., greedy: _Optional[_Union[Greedy, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ..., options: _Optional[_Union[Options, _Mapping]] = ..., step: _Optional[_Iterable[str]] = ..., seeds: _Optional[_Iterable[int]] = ...) -> None: ...

class ExtendNode(_message.Message):
    __slots__ = ("node", "continuation")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    node: int
    continuation: Continuation
    def __init__(self, node: _Optional[int] = ..., continuation: _Optional[_Union[Continuation, _Mapping]] = ...) -> None: ...

class ScoreNodes(_message.Message):
    __slots__ = ("nodes", "continuations", "top_logprobs", "priority")
    NODES_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    continuations: _containers.RepeatedCompositeFieldContainer[Continuation]
    top_logprobs: int
    priority: int
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., continuations: _Optional[_Iterable[_Union[Continuation, _Mapping]]] = ..., top_logprobs: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class PruneNodes(_message.Message):
    __slots__ = ("nodes", "subtree")
    NODES_FIELD_NUMBER: _ClassVar[int]
    SUBTREE_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    subtree: bool
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., subtree: bool = ...) -> None: ...

class TruncateNode(_message.Message):
    __slots__ = ("node", "num_tokens")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    node: int
    num_tokens: int
    def __init__(self, node: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class PinNodes(_message.Message):
    __slots__ = ("nodes", "ttl")
    NODES_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    ttl: float
    def __init__(self, nodes: _Optional[_Iterable[int]] = ..., ttl: _Optional[float] = ...) -> None: ...

class UnpinNodes(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class StopNodes(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class FinishNodes(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class ExportNodes(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class ImportNodes(_message.Message):
    __slots__ = ("paths", "parents")
    class ParentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PATHS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedCompositeFieldContainer[NodePath]
    parents: _containers.ScalarMap[int, int]
    def __init__(self, paths: _Optional[_Iterable[_Union[NodePath, _Mapping]]] = ..., parents: _Optional[_Mapping[int, int]] = ...) -> None: ...

class TreeEvent(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[TreeChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[TreeChange, _Mapping]]] = ...) -> None: ...

class TreeChange(_message.Message):
    __slots__ = ("opened", "accepted", "refused", "done", "delta", "stopped", "scored", "pruned", "exported")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    opened: TreeOpened
    accepted: CommandAccepted
    refused: CommandRefused
    done: CommandDone
    delta: NodeDelta
    stopped: NodeStopped
    scored: NodeScored
    pruned: NodesPruned
    exported: NodesExported
    def __init__(self, opened: _Optional[_Union[TreeOpened, _Mapping]] = ..., accepted: _Optional[_Union[CommandAccepted, _Mapping]] = ..., refused: _Optional[_Union[CommandRefused, _Mapping]] = ..., done: _Optional[_Union[CommandDone, _Mapping]] = ..., delta: _Optional[_Union[NodeDelta, _Mapping]] = ..., stopped: _Optional[_Union[NodeStopped, _Mapping]] = ..., scored: _Optional[_Union[NodeScored, _Mapping]] = ..., pruned: _Optional[_Union[NodesPruned, _Mapping]] = ..., exported: _Optional[_Union[NodesExported, _Mapping]] = ...) -> None: ...

class TreeOpened(_message.Message):
    __slots__ = ("tree", "secret", "model", "seed", "nodes", "limits", "grace", "idle_timeout", "max_command_bytes", "block_size", "max_positions")
    TREE_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_COMMAND_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    tree: str
    secret: str
    model: str
    seed: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    limits: TreeLimits
    grace: float
    idle_timeout: float
    max_command_bytes: int
    block_size: int
    max_positions: int
    def __init__(self, tree: _Optional[str] = ..., secret: _Optional[str] = ..., model: _Optional[str] = ..., seed: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., limits: _Optional[_Union[TreeLimits, _Mapping]] = ..., grace: _Optional[float] = ..., idle_timeout: _Optional[float] = ..., max_command_bytes: _Optional[int] = ..., block_size: _Optional[int] = ..., max_positions: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node", "parent", "depth", "state", "start", "token_ids", "text", "lineage", "next_seed", "finish_reason", "cumulative_logprob", "before_ids", "before_text", "item")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    BEFORE_IDS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_TEXT_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    node: int
    parent: int
    depth: int
    state: NodeState
    start: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    lineage: int
    next_seed: int
    finish_reason: NodeReason
    cumulative_logprob: float
    before_ids: _containers.RepeatedScalarFieldContainer[int]
    before_text: str
    item: str
    def __init__(self, node: _Optional[int] = ..., parent: _Optional[int] = ..., depth: _Optional[int] = ..., state: _Optional[_Union[NodeState, str]] = ..., start: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., lineage: _Optional[int] = ..., next_seed: _Optional[int] = ..., finish_reason: _Optional[_Union[NodeReason, str]] = ..., cumulative_logprob: _Optional[float] = ..., before_ids: _Optional[_Iterable[int]] = ..., before_text: _Optional[str] = ..., item: _Optional[str] = ...) -> None: ...

class NodePath(_message.Message):
    __slots__ = ("model", "node", "parent", "token_ids", "start", "text", "lineage", "next_seed", "finished", "finish_reason", "cumulative_logprob", "logprobs", "constraint", "constraint_start", "constraint_end", "item")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_START_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_END_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    model: str
    node: int
    parent: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    start: int
    text: str
    lineage: int
    next_seed: int
    finished: bool
    finish_reason: NodeReason
    cumulative_logprob: float
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    constraint: Constraint
    constraint_start: int
    constraint_end: int
    item: str
    def __init__(self, model: _Optional[str] = ..., node: _Optional[int] = ..., parent: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., text: _Optional[str] = ..., lineage: _Optional[int] = ..., next_seed: _Optional[int] = ..., finished: bool = ..., finish_reason: _Optional[_Union[NodeReason, str]] = ..., cumulative_logprob: _Optional[float] = ..., logprobs: _Optional[_Iterable[float]] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., constraint_start: _Optional[int] = ..., constraint_end: _Optional[int] = ..., item: _Optional[str] = ...) -> None: ...

class CommandAccepted(_message.Message):
    __slots__ = ("command_id", "nodes")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, command_id: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class CommandRefused(_message.Message):
    __slots__ = ("command_id", "error")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    error: Error
    def __init__(self, command_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class CommandDone(_message.Message):
    __slots__ = ("command_id", "usages", "error")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    USAGES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    usages: _containers.RepeatedCompositeFieldContainer[Usage]
    error: Error
    def __init__(self, command_id: _Optional[int] = ..., usages: _Optional[_Iterable[_Union[Usage, _Mapping]]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("reason", "code", "message", "field", "path", "limit", "retry_after")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    code: int
    message: str
    field: str
    path: str
    limit: str
    retry_after: float
    def __init__(self, reason: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., path: _Optional[str] = ..., limit: _Optional[str] = ..., retry_after: _Optional[float] = ...) -> None: ...

class NodeDelta(_message.Message):
    __slots__ = ("node", "token_ids", "text", "logprobs")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    node: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, node: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class NodeStopped(_message.Message):
    __slots__ = ("node", "state", "finish_reason", "cumulative_logprob", "error", "item")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    node: int
    state: NodeState
    finish_reason: NodeReason
    cumulative_logprob: float
    error: Error
    item: str
    def __init__(self, node: _Optional[int] = ..., state: _Optional[_Union[NodeState, str]] = ..., finish_reason: _Optional[_Union[NodeReason, str]] = ..., cumulative_logprob: _Optional[float] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., item: _Optional[str] = ...) -> None: ...

class NodeScored(_message.Message):
    __slots__ = ("command_id", "node", "continuations")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    node: int
    continuations: _containers.RepeatedCompositeFieldContainer[ScoredContinuation]
    def __init__(self, command_id: _Optional[int] = ..., node: _Optional[int] = ..., continuations: _Optional[_Iterable[_Union[ScoredContinuation, _Mapping]]] = ...) -> None: ...

class NodesPruned(_message.Message):
    __slots__ = ("command_id", "nodes")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, command_id: _Optional[int] = ..., nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class NodesExported(_message.Message):
    __slots__ = ("command_id", "paths")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    command_id: int
    paths: _containers.RepeatedCompositeFieldContainer[NodePath]
    def __init__(self, command_id: _Optional[int] = ..., paths: _Optional[_Iterable[_Union[NodePath, _Mapping]]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("prompt",)
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    prompt: Prompt
    def __init__(self, prompt: _Optional[_Union[Prompt, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("name", "dtype", "vocab_size", "max_positions", "eos_ids", "block_size", "num_blocks", "has_chat_template", "has_tokenizer", "version", "max_request_bytes", "catalogues")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    HAS_TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    CATALOGUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    vocab_size: int
    max_positions: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    block_size: int
    num_blocks: int
    has_chat_template: bool
    has_tokenizer: bool
    version: str
    max_request_bytes: int
    catalogues: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., has_chat_template: bool = ..., has_tokenizer: bool = ..., version: _Optional[str] = ..., max_request_bytes: _Optional[int] = ..., catalogues: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("steps", "running_groups", "waiting_groups", "running_rows", "total_blocks", "free_blocks", "used_blocks", "shared_blocks", "cached_blocks", "unique_block_steps", "unshared_block_steps", "wasted_slot_steps", "block_size", "copies", "preemptions", "swapped_blocks", "recomputed_tokens", "prefill_tokens", "cached_prompt_tokens", "generated_tokens", "finished_groups", "failed_groups", "decoded_rows", "steps_by_rows", "held_nodes", "held_blocks", "swapped_nodes", "dropped_nodes", "rebuilt_tokens", "naive_kv_bytes", "paged_kv_bytes", "forest_kv_bytes")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_GROUPS_FIELD_NUMBER: _ClassVar[int]
    WAITING_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_BLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNSHARED_BLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
    WASTED_SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    FAILED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DECODED_ROWS_FIELD_NUMBER: _ClassVar[int]
    STEPS_BY_ROWS_FIELD_NUMBER: _ClassVar[int]
    HELD_NODES_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_NODES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_NODES_FIELD_NUMBER: _ClassVar[int]
    REBUILT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAIVE_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGED_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOREST_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    steps: int
    running_groups: int
    waiting_groups: int
    running_rows: int
    total_blocks: int
    free_blocks: int
    used_blocks: int
    shared_blocks: int
    cached_blocks: int
    unique_block_steps: int
    unshared_block_steps: int
    wasted_slot_steps: int
    block_size: int
    copies: int
    preemptions: int
    swapped_blocks: int
    recomputed_tokens: int
    prefill_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    finished_groups: int
    failed_groups: int
    decoded_rows: int
    steps_by_rows: _containers.RepeatedScalarFieldContainer[int]
    held_nodes: int
    held_blocks: int
    swapped_nodes: int
    dropped_nodes: int
    rebuilt_tokens: int
    naive_kv_bytes: float
    paged_kv_bytes: float
    forest_kv_bytes: float
    def __init__(self, steps: _Optional[int] = ..., running_groups: _Optional[int] = ..., waiting_groups: _Optional[int] = ..., running_rows: _Optional[int] = ..., total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., used_blocks: _Optional[int] = ..., shared_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., unique_block_steps: _Optional[int] = ..., unshared_block_steps: _Optional[int] = ..., wasted_slot_steps: _Optional[int] = ..., block_size: _Optional[int] = ..., copies: _Optional[int] = ..., preemptions: _Optional[int] = ..., swapped_blocks: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., finished_groups: _Optional[int] = ..., failed_groups: _Optional[int] = ..., decoded_rows: _Optional[int] = ..., steps_by_rows: _Optional[_Iterable[int]] = ..., held_nodes: _Optional[int] = ..., held_blocks: _Optional[int] = ..., swapped_nodes: _Optional[int] = ..., dropped_nodes: _Optional[int] = ..., rebuilt_tokens: _Optional[int] = ..., naive_kv_bytes: _Optional[float] = ..., paged_kv_bytes: _Optional[float] = ..., forest_kv_bytes: _Optional[float] = ...) -> None: ...
