"""Counts, measures and observes IN, and returns the value of its gauge."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        counters = pb_utils.MetricFamily(
            name="seen_total", description="Values that were seen.", kind=pb_utils.MetricFamily.COUNTER
        )
        gauges = pb_utils.MetricFamily(
            name="seen_last", description="The last value.", kind=pb_utils.MetricFamily.GAUGE
        )
        histograms = pb_utils.MetricFamily(
            name="seen_values", description="All values.", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.counter = counters.Metric(labels=labels)
        self.gauge = gauges.Metric(labels=labels)
        self.histogram = histograms.Metric(labels=labels, buckets=[1, 10])
        self.temporary = gauges.Metric(labels={"model": "temporary"})

    def execute(self, requests):
        responses = []
        for request in requests:
            value = float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            self.temporary = None
            self.counter.increment(value)
            self.gauge.set(value)
            self.histogram.observe(value)
            output = pb_utils.Tensor("OUT", np.array([self.gauge.value()]))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
