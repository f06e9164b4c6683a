package measure

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// checkpointTimeout: the memory of a whole GPU goes over its bus in seconds; a process that hangs in the driver never ends.
const checkpointTimeout = 2 * time.Minute

// Checkpoint takes a process off its GPUs, its device memory into the host's, or puts it back: the program does whichever is due.
type Checkpoint func(ctx context.Context, pid int) error

// CheckpointBy runs NVIDIA's cuda-checkpoint, of a driver of 550 or later.
func CheckpointBy(program string) Checkpoint {
	return func(ctx context.Context, pid int) error {
		ctx, cancel := context.WithTimeout(ctx, checkpointTimeout)
		defer cancel()
		said, err := exec.CommandContext(ctx, program, "--toggle", "--pid", strconv.Itoa(pid)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(said[:min(len(said), 500)])))
		}
		return nil
	}
}
