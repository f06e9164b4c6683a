module firepool/node-agent

go 1.25.0
