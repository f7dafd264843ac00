"""The platforms on a laptop: `trident emulate`, whose help texts are here."""

EMULATE_LINES = (
    ("emulate sagemaker MODEL", "run a SageMaker endpoint on this machine, to try a model"),
    ("emulate vertex MODEL", "the same for Vertex AI and its batch prediction"),
    ("emulate azureml MODEL", "the same for Azure ML"),
)
EMULATE_USAGE = """\
Usage: trident emulate sagemaker [--multi-model] [options] MODEL
       trident emulate sagemaker --batch=INPUT --output=DIR [options] MODEL
       trident emulate vertex [options] GS_URI_OR_DIR [-- ARGUMENT ...]
       trident emulate vertex --batch=INPUT --output=DIR [options] GS_URI_OR_DIR [-- ARGUMENT ...]
       trident emulate azureml [options] DIR [-- ARGUMENT ...]

Starts the server as the platform starts a container, with the platform's API in front of it, on this machine only. It
enforces the platform's limits on both sides. At the end (Ctrl-C) it prints the exceeded limits, and exits with status 1
if there are any, otherwise 0.

Models from cloud storage are kept in the cache of serve:

  --model-cache-directory=string  as for serve, and by default the same
  --model-cache-bytes=integer     as for serve

SageMaker: boto3.client("sagemaker-runtime", endpoint_url=...) works with it. MODEL is a folder or a .tar.gz, as a path,
s3://bucket/prefix or gs://bucket/prefix.

  --multi-model     a multi-model endpoint: MODEL contains a .tar.gz of each model, which TargetModel names; from cloud
                    storage each is fetched when it is first called
  --port=integer    port of the runtime API; default 0, any free one
  --env=NAME=VALUE  a variable of the model's environment; repeatable
  --settings=FILE   JSON with the parameters of CreateModel, CreateEndpointConfig, CreateInferenceComponent or
                    CreateTransformJob: several instances, an asynchronous or serverless endpoint, a component, a job
  --batch=INPUT     run a batch transform job instead of an endpoint; INPUT is a file, a folder or s3://bucket/prefix;
                    status 1 if an object has no output
  --output=DIR      the folder or s3://bucket/prefix of its output

Vertex AI: PredictionServiceClient(transport="rest", client_options={"api_endpoint": ...}) works with it. A folder is
copied; a gs:// address is passed to the server unchanged, with STORAGE_EMULATOR_HOST. Without a MODEL the project is
empty, and python -m deploy.vertex --api-endpoint=... or the SDK uploads and deploys models to it.

  --port=integer                    port of the API; default 0, any free one
  --env=NAME=VALUE                  a variable of the model's environment, not AIP_...; repeatable
  --args=ARGUMENT                   an argument of the container, like those after --; repeatable
  --predict-route=PATH              default the platform's, /v1/endpoints/.../deployedModels/...:predict
  --health-route=PATH               default the platform's, /v1/endpoints/.../deployedModels/...
  --invoke-route-prefix=/*          every path of the container is served below .../invoke/, and nothing else is
  --grpc-port=integer               the container's gRPC port, for directRawPredict; the container opens it with
                                    --allow-grpc=true (and 8001 is its default)
  --endpoint-type=dedicated|shared  10 MB and 600 s, or 1.5 MB and 60 s; default dedicated
  --inference-timeout=seconds       of a dedicated endpoint; at most 3600
  --deployment-timeout=seconds      until the container must be healthy; default 1800 (a batch job: 2400), at most 7200

  --batch=INPUT                     run a batch prediction job instead of an endpoint; status 1 if an instance failed
  --output=DIR                      directory for predictions_0001.jsonl and errors_0001.jsonl
  --instances-format=jsonl|csv|file-list
                                    default by the name of the input; each line of a file-list names a file
  --key-field=NAME                  is not sent, and replaces the instance in the output
  --instance-type=array|object      the form of an instance; default that of the input
  --included-fields=NAME,...        the fields of an object that are sent, in this order
  --excluded-fields=NAME,...        the fields of an object that are not sent
  --batch-size=integer              instances in a request; default 64
  --model-parameters=JSON           the parameters of every request

Azure ML: POST /score works with it, as with an online endpoint of a custom container. DIR is a model or a repository.

  --port=integer                port of the endpoint; default 0, any free one
  --env=NAME=VALUE              a variable of the deployment; repeatable
  --request-timeout-ms=integer  of a call; default 5000, at most 180000
"""
