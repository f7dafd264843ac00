"""Has no configuration file: it completes its configuration itself."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config.add_input({"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]})
        auto_complete_model_config.add_input(
            {"name": "OPTIONAL", "data_type": "TYPE_INT64", "dims": [-1], "optional": True}
        )
        auto_complete_model_config.add_output({"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]})
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            optional = pb_utils.get_input_tensor_by_name(request, "OPTIONAL")
            if optional is not None:
                values = values * optional.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        return responses
