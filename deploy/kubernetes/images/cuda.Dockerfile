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
CMD ["node", "/opt/firepool/node_modules/firepool/dist/runner/main.js"]
