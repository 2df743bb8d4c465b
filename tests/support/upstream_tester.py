"""transformers' common model tests, set up for Linformer; `test_upstream.py` runs this file in a process of its own.

`transformers_tests` is the test folder of the transformers source distribution, laid out by `test_upstream.py`.
"""

import unittest

import transformers_tests.test_modeling_common as common
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask

import linformer_hf as lf


# The common tests tell what a class is for by finding its name in these tables, under any model type.
for table, model_class in (
    ("MODEL_MAPPING_NAMES", lf.LinformerModel),
    ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", lf.LinformerForMaskedLM),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", lf.LinformerForSequenceClassification),
    ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", lf.LinformerForTokenClassification),
    ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", lf.LinformerForQuestionAnswering),
    ("MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES", lf.LinformerForMultipleChoice),
):
    setattr(common, table, {**getattr(common, table), "linformer": model_class.__name__})


class LinformerModelTester:
    """What the common tests ask about the model: its sizes, a configuration, and a batch with padding in it."""

    batch_size = 13
    seq_length = 7
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_attention_heads = 4
    num_choices = 4
    key_length = 8  # the width of an attention map: k, where a dense model has the length of the input
    is_training = True

    def get_config(self):
        return lf.LinformerConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=37,
            max_position_embeddings=64,
            projected_length=self.key_length,
        )

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        inputs = {
            "input_ids": ids_tensor(shape, self.vocab_size),
            "attention_mask": random_attention_mask(shape),
            "token_type_ids": ids_tensor(shape, 2),
        }
        return self.get_config(), inputs


class LinformerCommonTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (
        lf.LinformerModel,  # the common tests take the first for the one without a head
        lf.LinformerForMaskedLM,
        lf.LinformerForSequenceClassification,
        lf.LinformerForTokenClassification,
        lf.LinformerForQuestionAnswering,
        lf.LinformerForMultipleChoice,
    )
    test_resize_position_embeddings = True
    # spared are models from before 2023, told by the copyright line of their file; ours is tested whatever it says
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self):
        self.model_tester = LinformerModelTester()
        self.config_tester = ConfigTester(self, config_class=lf.LinformerConfig, hidden_size=36)

    def test_config(self):
        self.config_tester.run_common_tests()
