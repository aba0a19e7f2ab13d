package org.fedlens.sdk.engine.child

import android.app.Service
import android.content.Intent
import android.os.Binder
import android.os.IBinder
import android.os.Parcel
import android.os.ParcelFileDescriptor
import android.os.Process
import android.os.SharedMemory
import android.system.Os
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.EngineException.Reason
import org.fedlens.sdk.NewerAndroid
import org.fedlens.sdk.engine.ExecuTorchRuntime
import org.fedlens.sdk.engine.LoadedProgram
import org.fedlens.sdk.engine.ProgramForm
import org.fedlens.sdk.engine.ProgramMemory
import org.fedlens.sdk.engine.child.Link.Status
import java.io.File
import java.io.FileInputStream
import java.io.FileOutputStream
import java.io.IOException
import java.io.InputStream

/** Loads a program into memory that the app shares. */
internal typealias Loader = (ProgramForm, File, ProgramMemory) -> LoadedProgram

/**
 * Runs programs in a process of their own, which ends with the service: a program may own what it has run in. The
 * manifest gives it the process.
 */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal open class ProgramService : Service() {
    /** Replaced by tests, which have no runtime for Android. */
    protected open fun binder() = ProgramBinder(runtime()::load)

    // Nothing else runs here, and results must not depend on the number of cores.
    protected fun runtime() = ExecuTorchRuntime("") { 1 }

    override fun onBind(intent: Intent?): IBinder = binder()

    override fun onDestroy() = Process.killProcess(Process.myPid())
}

/** [ProgramService] in a process that has nothing of the app: no files, no network, no permissions. */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal open class IsolatedProgramService : ProgramService() {
    // It may read the app's file, but never open it by a path.
    override fun binder() =
        ProgramBinder(runtime()::load) { file ->
            ParcelFileDescriptor.AutoCloseInputStream(file).use(ProgramBinder::inMemory)
        }
}

/** [ProgramService] for predictions. */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal class PredictionService : ProgramService()

/** [IsolatedProgramService] for predictions. */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal class IsolatedPredictionService : IsolatedProgramService()

/**
 * The programs of one bundle, in the process that runs them.
 *
 * @param reopenable A descriptor of the same file that can be opened by its path: ExecuTorch's classes take only those.
 */
@NewerAndroid(SeparateRuntime.LEAST_ANDROID)
internal class ProgramBinder(
    private val load: Loader,
    private val reopenable: (ParcelFileDescriptor) -> ParcelFileDescriptor = { it },
) : Binder() {
    // With their files, because some runtimes open one only when it first runs.
    private val programs = HashMap<Int, Pair<LoadedProgram, ParcelFileDescriptor>>()

    @Synchronized
    override fun onTransact(
        code: Int,
        data: Parcel,
        reply: Parcel?,
        flags: Int,
    ): Boolean {
        var (status, text) = Status.DONE to null as String?
        try {
            when (code) {
                Link.PROBE -> inMemory("probe".byteInputStream()).use { FileInputStream(pathOf(it)).close() }
                Link.LOAD -> programs[data.readInt()] = loaded(data)
                Link.RUN -> programs.getValue(data.readInt()).first.run()
                else -> return super.onTransact(code, data, reply, flags)
            }
        } catch (error: EngineException) {
            status = if (error.reason == Reason.RUNTIME_MISSING) Status.RUNTIME_MISSING else Status.FAILED
            text = error.message.orEmpty()
        } catch (error: IOException) {
            // Its message holds a path.
            status = Status.FAILED
            text = "it cannot open a descriptor's path, which ExecuTorch needs (${error.javaClass.simpleName})"
        } catch (error: OutOfMemoryError) {
            status = Status.FAILED
            text = "a program takes more memory than there is"
        } catch (error: RuntimeException) {
            // Whatever a runtime throws for a file that contradicts itself.
            status = Status.FAILED
            text = "a program cannot be used: $error"
        }
        reply?.writeInt(status.code)
        reply?.writeString(text?.take(Link.MOST_TEXT))
        return true
    }

    private fun loaded(data: Parcel): Pair<LoadedProgram, ParcelFileDescriptor> {
        val form = Link.read(data)
        val file = reopenable(ParcelFileDescriptor.CREATOR.createFromParcel(data))
        val memory = SharedMemory.CREATOR.createFromParcel(data).use { it.mapReadWrite() }
        return load(form, pathOf(file), ProgramMemory(form, memory)) to file
    }

    private fun pathOf(file: ParcelFileDescriptor) = File("/proc/self/fd/${file.fd}")

    companion object {
        /** A file in memory, without a name, with this content. */
        @NewerAndroid(SeparateRuntime.LEAST_ANDROID)
        fun inMemory(content: InputStream): ParcelFileDescriptor {
            val made = Os.memfd_create("fedlens", 0)
            try {
                content.copyTo(FileOutputStream(made))
                return ParcelFileDescriptor.dup(made)
            } finally {
                Os.close(made)
            }
        }
    }
}
