// Command pause holds a pod's namespaces open: it waits for a signal to end, and reaps what is left to it as process 1.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for got := range signals {
		if got != syscall.SIGCHLD {
			return
		}
		for reaped := 1; reaped > 0; {
			reaped, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
