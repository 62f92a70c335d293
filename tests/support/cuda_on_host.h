/* What CUDA's kernels use, for a compiler of the host; see cuda_on_host.py. A thread of a block is a context of its
 * own, which runs until it comes to a barrier. */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)
#define __restrict__ __restrict

namespace {

using std::fma;
using std::sqrt;

struct Dimensions {
    unsigned int x, y;
};

Dimensions threadIdx, blockIdx, blockDim, gridDim;

/* IEEE's 16 bits, rounded to nearest, ties to even. */
struct __half {
    uint16_t bits;

    __half() = default;
    explicit __half(double value)
    {
        uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        double size = std::fabs(value);
        if (std::isnan(value))
            bits = 0x7fff;
        else if (size < 0x1p-14)
            bits = sign | (uint16_t)std::nearbyint(size * 0x1p24);
        else if (size >= 65520)
            bits = sign | 0x7c00;
        else {
            int exponent;
            double fraction = std::frexp(size, &exponent); /* 0.5 <= fraction < 1 */
            bits = sign + (uint16_t)(((exponent + 13) << 10) + (int)std::nearbyint(fraction * 2048));
        }
    }
};

inline float __half2float(__half value)
{
    int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                 : std::ldexp(fraction, -24);
    return value.bits & 0x8000 ? -size : size;
}

struct Range {
    const char *begin, *end;
    uint32_t *reads, *writes;
} ranges[8];
int watched;

/* An element of a map: reading and writing it is counted where its address is watched, so not in registers. */
template <class Raw> struct Watched {
    Raw raw;

    Watched() = default;
    Watched(const Watched &other) : raw(other.seen()) {}
    explicit Watched(float value) : raw(value) {}
    explicit Watched(double value) : raw(value) {}
    Watched &operator=(const Watched &other)
    {
        raw = other.seen();
        for (int i = 0; i < watched; i++)
            if (in(ranges[i]))
                ranges[i].writes[place(ranges[i])]++;
        return *this;
    }
    operator Raw() const { return seen(); }

    Raw seen() const
    {
        for (int i = 0; i < watched; i++)
            if (in(ranges[i]))
                ranges[i].reads[place(ranges[i])]++;
        return raw;
    }
    bool in(const Range &range) const { return (const char *)this >= range.begin && (const char *)this < range.end; }
    size_t place(const Range &range) const { return ((const char *)this - range.begin) / sizeof(Raw); }
};

enum { MOST_THREADS = 1024, STACK_BYTES = 1 << 15 };

ucontext_t scheduler, contexts[MOST_THREADS];
char stacks[MOST_THREADS][STACK_BYTES];
bool ended[MOST_THREADS];
int running;
void (*body)(void *);
void *body_data;

void __syncthreads() { swapcontext(&contexts[running], &scheduler); }

void thread_body()
{
    body(body_data);
    ended[running] = true;
    swapcontext(&contexts[running], &scheduler);
}

/* 1 where some threads have ended while others wait at a barrier. */
int run_block(int backwards)
{
    int threads = blockDim.x * blockDim.y, left = threads;
    for (int i = 0; i < threads; i++) {
        ended[i] = false;
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = STACK_BYTES;
        contexts[i].uc_link = nullptr;
        makecontext(&contexts[i], thread_body, 0);
    }
    while (left) {
        if (left != threads)
            return 1;
        for (int i = 0; i < threads; i++) {
            running = backwards ? threads - 1 - i : i;
            threadIdx = {running % blockDim.x, running / blockDim.x};
            swapcontext(&scheduler, &contexts[running]);
            left -= ended[running];
        }
    }
    return 0;
}

template <class... Types, size_t... Indices>
void call(void (*kernel)(Types...), void **arguments, std::index_sequence<Indices...>)
{
    kernel(*(std::remove_reference_t<Types> *)arguments[Indices]...);
}

template <class... Types> int launch(void (*kernel)(Types...), void **arguments, int blocks, int columns, int rows,
                                     int first, int last, int backwards)
{
    auto bound = [&] { call(kernel, arguments, std::index_sequence_for<Types...>()); };
    body = [](void *data) { (*(decltype(bound) *)data)(); };
    body_data = &bound;
    gridDim = {(unsigned)blocks, 1};
    blockDim = {(unsigned)columns, (unsigned)rows};
    for (int block = first; block < last; block++) {
        blockIdx = {(unsigned)(backwards ? first + last - 1 - block : block), 0};
        if (run_block(backwards))
            return 1;
    }
    return 0;
}

template <class Type> char *kind(char *text)
{
    const char *name = std::is_pointer_v<Type> ? "pointer" : std::is_integral_v<Type> ? "int" : "float";
    std::strcpy(text, name);
    text += std::strlen(name);
    *text++ = '0' + sizeof(Type);
    *text++ = ' ';
    return text;
}

template <class... Types> const char *kinds(void (*)(Types...))
{
    static char text[16 * sizeof...(Types)];
    char *end = text;
    ((end = kind<Types>(end)), ...);
    return text;
}

} // namespace

#define KERNEL(name)                                                                                                   \
    extern "C" {                                                                                                       \
    const char *kinds_##name = kinds(name);                                                                            \
    int launch_##name(void **arguments, int blocks, int columns, int rows, int first, int last, int backwards)         \
    {                                                                                                                  \
        return launch(name, arguments, blocks, columns, rows, first, last, backwards);                                 \
    }                                                                                                                  \
    }

extern "C" void watch(int number, const char *begin, const char *end, uint32_t *reads, uint32_t *writes)
{
    ranges[number] = {begin, end, reads, writes};
    watched = number + 1;
}

extern "C" void forget() { watched = 0; }
