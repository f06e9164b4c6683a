package measure

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	// HeldLine is what the self-test's process prints when it has the device.
	HeldLine = "held"
	// selfTestTimeout bounds the start of a context, which takes a fraction of a second on a healthy GPU.
	selfTestTimeout = 10 * time.Second
	listAgain       = 20 * time.Millisecond
)

// SelfTest starts a process that opens a context on the GPU and looks for it in the driver's list. Nil when it was
// there: then an empty list means that nobody is. The process has ended when this returns.
func SelfTest(driver Driver, uuid string, holder *exec.Cmd, started func(pid int)) error {
	stdin, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr strings.Builder
	holder.Stderr = &stderr
	if err := holder.Start(); err != nil {
		return err
	}
	started(holder.Process.Pid)
	limit := time.AfterFunc(selfTestTimeout, func() { _ = holder.Process.Kill() })
	end := func() {
		_ = stdin.Close()
		_ = holder.Process.Kill()
		_ = holder.Wait() // also waits for what it has said; a second call does nothing
		limit.Stop()
	}
	defer end()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != HeldLine {
		end()
		return fmt.Errorf("no context could be opened: %s", strings.TrimSpace(stderr.String()))
	}
	for until := time.Now().Add(selfTestTimeout); time.Now().Before(until); time.Sleep(listAgain) {
		pids, err := driver.Pids(uuid)
		if err != nil {
			return err
		}
		if slices.Contains(pids, holder.Process.Pid) {
			return nil
		}
	}
	return errors.New("the driver does not list a process of this agent that has a context (is the agent in the node's pid namespace?)")
}
