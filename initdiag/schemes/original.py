"""The first Transformers: tensor2tensor, T5 in Mesh TensorFlow and in Hugging Face, BERT."""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_GROWS = "The sum of the branch variances grows like N: no std depends on depth."

_XAVIER = Draw("uniform", "sqrt(6 / (fan_in + fan_out))")

T2T = Scheme(
    name="t2t",
    family="Original Transformers",
    summary="xavier uniform in every dense layer, embedding N(1/sqrt(d_model)) that the forward pass scales to 1",
    source="tensorflow/tensor2tensor models/transformer.py transformer_base_v1, layers/modalities.py get_weights",
    roles={
        **PLAIN,
        **dict.fromkeys((*LINEAR_WEIGHTS, Role.POSITION_EMBEDDING), _XAVIER),
        **dict.fromkeys((Role.TOKEN_EMBEDDING, Role.LM_HEAD), Draw("normal", "1 / sqrt(d_model)")),
    },
    forward={"embedding_multiplier": "sqrt(d_model)"},
    depth=_GROWS,
    used_by="the Transformer of 2017",
    notes=(
        "The head shares the embedding and has no multiplier, so the logits of a normed stream have std 1.",
        "Learned positions have no initializer of their own and take the model's; its default are sinusoidal ones.",
        "With attention_variables_3d the code draws q, k, v and out from normals instead: N(1/sqrt(d_model)), q "
        "another 1/sqrt(head_dim) smaller. This scheme is the default without it.",
    ),
    aliases=("tensor2tensor",),
)


def _t5(dense: Draw, head: Draw) -> Mapping[Role, Draw]:
    return {
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, dense),
        Role.ATTENTION_QUERY: Draw("normal", "1 / sqrt(fan_in * key_dim)"),
        **dict.fromkeys((Role.ATTENTION_KEY, Role.ATTENTION_VALUE), Draw("normal", "1 / sqrt(fan_in)")),
        Role.ATTENTION_OUT: Draw("normal", "1 / sqrt(fan_in)"),  # fan_in is n_heads * head_dim
        Role.LM_HEAD: head,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
    }


_MESH_DENSE = Draw("truncated", "1 / sqrt(fan_in)", cut="cut")
_KEY_DIM = {"key_dim": "head_dim"}  # to be set for a module whose width of heads nobody knows
_UNIT_SCALE = (
    "Queries are drawn 1/sqrt(head_dim) smaller than keys, and the forward pass doesn't divide by sqrt(head_dim): the "
    "attention logits start with std 1 all the same."
)
_CUT = "tf.truncated_normal_initializer cuts at 2 sigma and corrects nothing: the std is 0.8796 of what is asked for."
_MESH = "tensorflow/mesh transformer/attention.py AttentionParams.init_weights, layers.py VarianceScalingInitializer"

T5 = Scheme(
    name="t5",
    family="Original Transformers",
    summary="embedding N(1), kernels 1/sqrt(fan_in), queries smaller by 1/sqrt(head_dim); a tied head's logits scaled",
    source=f"{_MESH}, transformer.py VocabEmbedding.hidden_to_logits",
    roles=_t5(_MESH_DENSE, _MESH_DENSE),
    parameters={**_KEY_DIM, "cut": "2"},
    forward={"attention_scale": "head_dim ** (-qk_norm / 2)", "logit_multiplier": "d_model ** (-tied / 2)"},
    depth=_GROWS,
    used_by="T5 1.0, whose head is tied; T5 1.1, whose head is its own",
    notes=(
        _UNIT_SCALE,
        "The logits of a tied head are multiplied by 1/sqrt(d_model), or they would start with std sqrt(d_model).",
        _CUT,
        "Attention matrices are plain normals, those of the MLP cut ones.",
        "T5 has relative positions; learned ones are drawn like the embedding.",
    ),
    aliases=("t5-mesh",),
)

T5_HF = Scheme(
    name="t5-hf",
    family="Original Transformers",
    summary="T5 1.1 as the Hugging Face class draws it: no cuts, and a head N(1) that nothing scales down",
    source="transformers models/t5/modeling_t5.py T5PreTrainedModel._init_weights",
    roles=_t5(Draw("normal", "1 / sqrt(fan_in)"), Draw("normal", "1")),
    parameters=_KEY_DIM,
    forward={"attention_scale": "head_dim ** (-qk_norm / 2)"},
    depth=_GROWS,
    notes=(
        "The head is N(1) where Mesh has 1/sqrt(d_model), and only a tied one is multiplied by 1/sqrt(d_model): "
        "trained from scratch, the logits of T5 1.1 start with std near sqrt(d_model).",
        "transformers 5.24.0 ties the head whatever tie_word_embeddings says; saying false only drops the multiplier.",
        "With the multiplier (T5 1.0) set logit_multiplier to 1 / sqrt(d_model).",
        _UNIT_SCALE,
    ),
)

BERT = Scheme(
    name="bert",
    family="Original Transformers",
    summary="every matrix and embedding N(0.02) cut at 2 sigma, biases 0",
    source="google-research/bert modeling.py create_initializer",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("truncated", "std", cut="cut")),
    },
    parameters={"std": "0.02", "cut": "2"},
    depth="The sum of the branch variances grows like N, since no std depends on depth; BERT's norms after every "
    "addition keep the stream itself at 1.",
    used_by="BERT",
    notes=(
        f"{_CUT} So 0.02 is really 0.0176.",
        "The Hugging Face class draws plain normals, as its own comment says: that is gpt2, alias bert-hf.",
    ),
)

ORIGINAL_SCHEMES = (T2T, T5, T5_HF, BERT)
