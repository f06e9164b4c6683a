# A pod of a GPU pool: as cpu.Dockerfile, on NVIDIA's CUDA base. The driver is the node's own; frameworks belong here.
#   docker build --file deploy/kubernetes/images/cuda.Dockerfile --tag firepool-runner-cuda:0.1.0 deploy/kubernetes/images
ARG FIREPOOL=firepool:0.1.0
ARG CUDA=nvidia/cuda:12.8.0-base-ubuntu24.04
FROM ${FIREPOOL} AS firepool

FROM ${CUDA}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libstdc++6 python3 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=firepool /usr/local/bin/node /usr/local/bin/node
COPY --from=firepool /opt/firepool/node_modules/firepool /opt/firepool/node_modules/firepool
ENV NODE_ENV=production
USER 1000:1000
# As the backend says it (src/kubernetes/runner-command.ts): a shell that waits for what jobs leave behind, and the runner.
CMD ["/bin/sh", "-c", "read -r pid _ < /proc/self/stat\n[ \"$pid\" = 1 ] || exec \"$0\" \"$@\"\ntrap 'kill -TERM \"$runner\"' TERM INT\n\"$0\" \"$@\" &\nrunner=$!\nuntil wait \"$runner\"; code=$?; ! kill -0 \"$runner\" 2> /dev/null; do :; done\nexit \"$code\"", "node", "/opt/firepool/node_modules/firepool/dist/runner/main.js"]
