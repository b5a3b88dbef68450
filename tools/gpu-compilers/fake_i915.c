/* An Intel GPU that is not there, for the compiler in Mesa's ANV: a library to preload.
 *
 *     FAKE_I915="DEVICE REVISION SUBSLICES MEMORY"     56a0 8 32 local: an Arc A770; 9a49 4 6 shared: a Tiger Lake
 *
 * libdrm is told of one device of the kernel driver i915, whose nodes are sparse files that setup.sh makes. Every request
 * to them is answered here: with the figures of the device where ANV reads them, and with a nod where it only gives orders.
 * Nothing is ever computed. Mesa has such libraries for other makers' GPUs, and Debian packages them; this one stays short
 * by knowing only what ANV asks before and while it compiles.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <drm.h>
#include <i915_drm.h>

#define GIB (1ull << 30)
#define PAGE 0x10000ull
#define EUS_PER_SUBSLICE 16

/* --- The device as libdrm describes it: xf86drm.h ------------------------------------------------------------------ */

struct pci_place { uint16_t domain; uint8_t bus, dev, func; };
struct pci_names { uint16_t vendor, device, subvendor, subdevice; uint8_t revision; };
struct drm_device {
    char **nodes;
    int available_nodes; /* a bit for each of them */
    int bus_type;        /* 0: PCI */
    struct pci_place *place;
    struct pci_names *names;
};
struct drm_version_text {
    int major, minor, patch;
    int name_len; char *name;
    int date_len; char *date;
    int desc_len; char *desc;
};

/* ANV has room for short paths only. */
static char *nodes[] = {"/gpu/card0", NULL, "/gpu/renderD128"};
static struct pci_place place = {.bus = 0, .dev = 2};
static struct pci_names names = {.vendor = 0x8086};
static struct drm_device device = {nodes, 1 << 0 | 1 << 2, 0, &place, &names};
static unsigned subslices;
static int has_local_memory;

__attribute__((constructor)) static void read_environment(void)
{
    const char *wanted = getenv("FAKE_I915");
    unsigned id, revision;
    char memory[8];
    if (!wanted || sscanf(wanted, "%x %u %u %7s", &id, &revision, &subslices, memory) != 4) {
        fprintf(stderr, "FAKE_I915 is not DEVICE REVISION SUBSLICES MEMORY\n");
        exit(2);
    }
    names.device = id;
    names.revision = revision;
    has_local_memory = strcmp(memory, "local") == 0;
}

int drmGetDevices2(uint32_t flags, struct drm_device **devices, int most)
{
    if (devices && most > 0)
        devices[0] = &device;
    return 1;
}

int drmGetDevices(struct drm_device **devices, int most) { return drmGetDevices2(0, devices, most); }

int drmGetDevice2(int fd, uint32_t flags, struct drm_device **found)
{
    *found = &device;
    return 0;
}

int drmGetDevice(int fd, struct drm_device **found) { return drmGetDevice2(fd, 0, found); }

int drmGetDeviceFromDevId(unsigned long id, uint32_t flags, struct drm_device **found)
{
    return drmGetDevice2(-1, flags, found);
}

void drmFreeDevice(struct drm_device **found)
{
    if (found)
        *found = NULL;
}

void drmFreeDevices(struct drm_device **devices, int count) {}

int drmDevicesEqual(struct drm_device *a, struct drm_device *b) { return a == b; }

struct drm_version_text *drmGetVersion(int fd)
{
    static struct drm_version_text version = {1, 6, 0, 4, "i915", 8, "20201103", 5, "Intel"};
    return &version;
}

void drmFreeVersion(struct drm_version_text *version) {}

char *drmGetRenderDeviceNameFromFd(int fd) { return strdup(nodes[2]); }

int drmGetCap(int fd, uint64_t capability, uint64_t *value)
{
    *value = capability == DRM_CAP_PRIME ? DRM_PRIME_CAP_IMPORT | DRM_PRIME_CAP_EXPORT : 1;
    return 0;
}

/* --- What the kernel driver would answer --------------------------------------------------------------------------- */

/* Memory is a stretch of the node's sparse file, and its handle is the stretch's first page. */
static uint64_t next_page = 16;

static int make_memory(uint64_t bytes, uint32_t *handle)
{
    *handle = next_page;
    next_page += (bytes + PAGE - 1) / PAGE;
    return 0;
}

static int get_parameter(drm_i915_getparam_t *asked)
{
    switch (asked->param) {
    case I915_PARAM_CHIPSET_ID: *asked->value = names.device; break;
    case I915_PARAM_REVISION: *asked->value = names.revision; break;
    case I915_PARAM_CS_TIMESTAMP_FREQUENCY: *asked->value = 19200000; break;
    case I915_PARAM_HAS_ALIASING_PPGTT: *asked->value = 3; break; /* 48 bits of addresses, per process */
    case I915_PARAM_MMAP_GTT_VERSION:
    case I915_PARAM_MMAP_VERSION: *asked->value = 4; break;
    case I915_PARAM_CMD_PARSER_VERSION: *asked->value = 10; break;
    case I915_PARAM_SUBSLICE_TOTAL: *asked->value = subslices; break;
    case I915_PARAM_EU_TOTAL: *asked->value = subslices * EUS_PER_SUBSLICE; break;
    case I915_PARAM_PERF_REVISION: *asked->value = 5; break;
    case I915_PARAM_HAS_SCHEDULER: *asked->value = 0x1f; break;
    default: *asked->value = 1; /* whatever it is, the device has it */
    }
    return 0;
}

/* One slice with all its parts switched on. */
static int topology(void *into)
{
    unsigned slice_bytes = (subslices + 7) / 8, eu_bytes = EUS_PER_SUBSLICE / 8;
    unsigned bytes = sizeof(struct drm_i915_query_topology_info) + 1 + slice_bytes + subslices * eu_bytes;
    struct drm_i915_query_topology_info *info = into;
    if (info) {
        memset(info, 0, bytes);
        info->max_slices = 1;
        info->max_subslices = subslices;
        info->max_eus_per_subslice = EUS_PER_SUBSLICE;
        info->subslice_offset = 1;
        info->subslice_stride = slice_bytes;
        info->eu_offset = 1 + slice_bytes;
        info->eu_stride = eu_bytes;
        info->data[0] = 1;
        for (unsigned i = 0; i < subslices; i++)
            info->data[1 + i / 8] |= 1 << i % 8;
        memset(info->data + 1 + slice_bytes, 0xff, subslices * eu_bytes);
    }
    return bytes;
}

/* One to draw and compute, one to copy. */
static int engines(void *into)
{
    struct drm_i915_query_engine_info *info = into;
    unsigned bytes = sizeof *info + 2 * sizeof info->engines[0];
    if (info) {
        memset(info, 0, bytes);
        info->num_engines = 2;
        info->engines[0].engine.engine_class = I915_ENGINE_CLASS_RENDER;
        info->engines[1].engine.engine_class = I915_ENGINE_CLASS_COPY;
    }
    return bytes;
}

static int memory_regions(void *into)
{
    struct drm_i915_query_memory_regions *info = into;
    unsigned count = has_local_memory ? 2 : 1, bytes = sizeof *info + count * sizeof info->regions[0];
    if (info) {
        memset(info, 0, bytes);
        info->num_regions = count;
        for (unsigned i = 0; i < count; i++) {
            struct drm_i915_memory_region_info *region = &info->regions[i];
            region->region.memory_class = i ? I915_MEMORY_CLASS_DEVICE : I915_MEMORY_CLASS_SYSTEM;
            region->probed_size = region->unallocated_size = 16 * GIB;
            if (i)
                region->probed_cpu_visible_size = region->unallocated_cpu_visible_size = 16 * GIB;
        }
    }
    return bytes;
}

/* Asked without room, a query tells its length. */
static int query(struct drm_i915_query *asked)
{
    struct drm_i915_query_item *item = (void *)(uintptr_t)asked->items_ptr;
    for (unsigned i = 0; i < asked->num_items; i++, item++) {
        void *into = item->length ? (void *)(uintptr_t)item->data_ptr : NULL;
        switch (item->query_id) {
        case DRM_I915_QUERY_TOPOLOGY_INFO:
        case DRM_I915_QUERY_GEOMETRY_SUBSLICES: item->length = topology(into); break;
        case DRM_I915_QUERY_ENGINE_INFO: item->length = engines(into); break;
        case DRM_I915_QUERY_MEMORY_REGIONS: item->length = memory_regions(into); break;
        default: item->length = -EINVAL;
        }
    }
    return 0;
}

static int answer(unsigned long request, void *arg)
{
    switch (_IOC_NR(request) - DRM_COMMAND_BASE) {
    case DRM_I915_GETPARAM: return get_parameter(arg);
    case DRM_I915_QUERY: return query(arg);
    case DRM_I915_GEM_CREATE: {
        struct drm_i915_gem_create *create = arg;
        return make_memory(create->size, &create->handle);
    }
    case DRM_I915_GEM_CREATE_EXT: {
        struct drm_i915_gem_create_ext *create = arg;
        return make_memory(create->size, &create->handle);
    }
    case DRM_I915_GEM_USERPTR: {
        struct drm_i915_gem_userptr *create = arg;
        return make_memory(create->user_size, &create->handle);
    }
    case DRM_I915_GEM_MMAP_GTT: {
        struct drm_i915_gem_mmap_offset *map = arg;
        map->offset = map->handle * PAGE;
        return 0;
    }
    case DRM_I915_GEM_CONTEXT_CREATE: ((struct drm_i915_gem_context_create *)arg)->ctx_id = 1; return 0;
    case DRM_I915_GEM_CONTEXT_GETPARAM: {
        struct drm_i915_gem_context_param *asked = arg;
        asked->value = asked->param == I915_CONTEXT_PARAM_GTT_SIZE ? 1ull << 48 : 0;
        return 0;
    }
    case DRM_I915_GEM_GET_APERTURE: {
        struct drm_i915_gem_get_aperture *aperture = arg;
        aperture->aper_size = aperture->aper_available_size = 8 * GIB;
        return 0;
    }
    case DRM_I915_GEM_VM_CREATE: ((struct drm_i915_gem_vm_control *)arg)->vm_id = 1; return 0;
    case DRM_I915_REG_READ: ((struct drm_i915_reg_read *)arg)->val = 0; return 0;
    default: return 0; /* an order */
    }
}

int ioctl(int fd, unsigned long request, ...)
{
    static int (*real)(int, unsigned long, void *);
    va_list rest;
    va_start(rest, request);
    void *arg = va_arg(rest, void *);
    va_end(rest);
    if (!real)
        real = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
    if (_IOC_TYPE(request) != DRM_IOCTL_BASE)
        return real(fd, request, arg);
    if (_IOC_NR(request) >= DRM_COMMAND_BASE && _IOC_NR(request) < DRM_COMMAND_END)
        return answer(request, arg);
    if (request == DRM_IOCTL_GET_CAP)
        ((struct drm_get_cap *)arg)->value = 1;
    if (request == DRM_IOCTL_SYNCOBJ_CREATE)
        ((struct drm_syncobj_create *)arg)->handle = next_page++;
    return 0;
}

int drmIoctl(int fd, unsigned long request, void *arg) { return ioctl(fd, request, arg); }

int drmSyncobjCreate(int fd, uint32_t flags, uint32_t *handle)
{
    *handle = next_page++;
    return 0;
}
