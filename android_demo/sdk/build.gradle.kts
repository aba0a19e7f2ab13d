import com.android.build.api.variant.HasHostTestsBuilder
import com.android.build.api.variant.HostTestBuilder
import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.android.library)
    alias(libs.plugins.kotlin.android)
    alias(libs.plugins.protobuf)
}

version = libs.versions.fedlens.get()

android {
    namespace = "org.fedlens.sdk"
    compileSdk = libs.versions.compile.sdk.get().toInt()

    defaultConfig {
        minSdk = libs.versions.min.sdk.get().toInt()
        consumerProguardFiles("consumer-rules.pro")
        // What only a device can show; not run by FedLens's own builds.
        testInstrumentationRunner = "org.fedlens.sdk.OnDevice"
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_11
        targetCompatibility = JavaVersion.VERSION_11
    }

    sourceSets {
        getByName("androidTest") {
            kotlin.srcDir("src/sharedTest/kotlin")
            assets.srcDir("../../tests/vectors")
        }
        getByName("main") {
            // The messages come from the repository's schema; operators' calls are not for phones.
            (this as ExtensionAware).extensions.configure<SourceDirectorySet>("proto") {
                srcDir("../../proto")
                exclude("**/admin.proto")
            }
        }
    }
}

androidComponents {
    beforeVariants { variant ->
        // Maven runs the tests, with libraries that are not named here.
        (variant as HasHostTestsBuilder).hostTests[HostTestBuilder.UNIT_TEST_TYPE]?.enable = false
    }
}

kotlin {
    explicitApi()
    compilerOptions {
        jvmTarget = JvmTarget.JVM_11
    }
}

protobuf {
    protoc {
        artifact = libs.protoc.get().toString()
    }
    generateProtoTasks {
        all().configureEach {
            builtins {
                create("java") {
                    option("lite")
                }
            }
        }
    }
}

dependencies {
    api(libs.kotlinx.coroutines)
    implementation(libs.protobuf.javalite)
    implementation(libs.okhttp)
    // Java classes and the native runtime for arm64-v8a and x86_64, from which an app inherits them.
    implementation(libs.executorch.android)
    androidTestImplementation(libs.junit)
    androidTestImplementation(libs.gson)
}
