//go:build cgo

package nvidia

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>

// firepool_context opens a context on the first visible GPU. The names and shapes are those of the CUDA driver API.
// It returns NULL, or the step that failed, and the driver's code in *code.
static const char *firepool_context(int *code) {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return "load libcuda.so.1";
	int (*init)(unsigned) = dlsym(library, "cuInit");
	int (*get)(int *, int) = dlsym(library, "cuDeviceGet");
	int (*create)(void **, unsigned, int) = dlsym(library, "cuCtxCreate_v2");
	if (!init || !get || !create) return "find cuInit, cuDeviceGet and cuCtxCreate_v2";
	int device = 0;
	void *context = NULL;
	if ((*code = init(0))) return "cuInit";
	if ((*code = get(&device, 0))) return "cuDeviceGet";
	if ((*code = create(&context, 0, device))) return "cuCtxCreate";
	return NULL;
}
*/
import "C"

import "fmt"

// OpenContext opens a device context in this process, which then is in the driver's list until it ends. CUDA_VISIBLE_DEVICES
// chooses the GPU.
func OpenContext() error {
	var code C.int
	if step := C.firepool_context(&code); step != nil {
		return fmt.Errorf("%s: code %d", C.GoString(step), int(code))
	}
	return nil
}
