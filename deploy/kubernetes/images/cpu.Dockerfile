# A pod of a CPU pool: the runner, Node for it, and what jobs need, which belongs here. Built after deploy/docker/Dockerfile:
#   docker build --file deploy/kubernetes/images/cpu.Dockerfile --tag firepool-runner-cpu:0.1.0 deploy/kubernetes/images
ARG FIREPOOL=firepool:0.1.0
FROM ${FIREPOOL} AS firepool

FROM node:24.21.0-bookworm-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/*
# The runner needs nothing of Temporal, and so these images have nothing of it.
COPY --from=firepool /opt/firepool/node_modules/firepool /opt/firepool/node_modules/firepool
ENV NODE_ENV=production
# By number: a kubelet cannot tell of a name that it is not root.
USER 1000:1000
# As the backend says it (src/kubernetes/runner-command.ts): a shell that waits for what jobs leave behind, and the runner.
CMD ["/bin/sh", "-c", "read -r pid _ < /proc/self/stat\n[ \"$pid\" = 1 ] || exec \"$0\" \"$@\"\ntrap 'kill -TERM \"$runner\"' TERM INT\n\"$0\" \"$@\" &\nrunner=$!\nuntil wait \"$runner\"; code=$?; ! kill -0 \"$runner\" 2> /dev/null; do :; done\nexit \"$code\"", "node", "/opt/firepool/node_modules/firepool/dist/runner/main.js"]
