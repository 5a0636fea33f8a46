#!/bin/sh
# Real clients against our API, each kind in an environment of its own.
# sh tests/clients/run.sh FOLDER: FOLDER keeps the environments. Run with ours active, from the root.
set -eu
# litellm would fetch its list of prices from the network.
export LITELLM_LOCAL_MODEL_COST_MAP=True
folder=$(mkdir -p "$1/node" && cd "$1" && pwd)
here=tests/clients

make_environment() { # its name, then what to install
    name=$1
    shift
    [ -d "$folder/$name" ] && return
    python -m venv "$folder/$name"
    "$folder/$name/bin/pip" install -q "$@"
}

check() { python -m tests.clients.check_clients "$@"; }

make_environment new -r $here/requirements.txt
make_environment inception 'inceptionai==0.3.*'
make_environment openai1 'openai>=1,<2'
make_environment openai3 'openai>=3,<4'
check "$folder/new/bin/python" use_openai.py use_litellm.py use_langchain.py use_pydantic_ai.py
check "$folder/inception/bin/python" use_inception.py
check "$folder/openai1/bin/python" use_openai.py
check "$folder/openai3/bin/python" use_openai.py

cp $here/node/* "$folder/node/"
(cd "$folder/node" && npm install --no-audit --no-fund --silent)
check node "$folder/node/use_openai.mjs" "$folder/node/use_ai_sdk.mjs"
